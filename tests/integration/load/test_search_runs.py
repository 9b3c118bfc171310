"""A search reads the server's own counters around each of its runs, as a schedule does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest

from backend import channel as form
from backend.channel import JobChannel
from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.evaluation.soundness import measured_blocks
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.workload.workload import parse_workload
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.server_pool import Endpoint, ServerPool, ServerSetup
from backend.worker.progress import ChannelProgress
from tests.fakes.running import running, write_prompts


class Counting(Endpoint):
    """Between two readings of its counters 40 tokens are drafted and 10 of them accepted."""

    readings = 0

    def counters(self) -> dict[str, float]:
        self.readings += 1
        return {"accepted_tokens": 10.0 * self.readings, "drafted_tokens": 40.0 * self.readings}


class Ending(Endpoint):
    """Its server ends while it is asked for the second time, so that its counters cannot be read any more."""

    readings = 0

    def counters(self) -> dict[str, float]:
        self.readings += 1
        if self.readings > 4:  # one of the warm-up, two of the first block, one before the second
            raise ServerFailed("The model server does not answer any more: it was killed.")
        return {}


class PoolThatLosesOne(ServerPool):
    def use(self, index: int) -> Endpoint:
        if index not in self.endpoints:
            kind = Ending if index else Endpoint
            self.endpoints[index] = kind(*vars(super().use(index)).values())
        return self.endpoints[index]

    endpoints: ClassVar[dict[int, Endpoint]] = {}


class Pool(ServerPool):
    def use(self, index: int) -> Endpoint:
        return Counting(*vars(super().use(index)).values())


@pytest.mark.parametrize(
    "values", [{"sweep": ("latency_p50<=5s",), "sweep_to": 1.0}, {"repeats": 1}], ids=["search", "schedule"]
)
def test_a_level_has_the_acceptance_rate_of_its_time(tmp_path: Path, values: dict[str, object]) -> None:
    workload = parse_workload("made", Path(write_prompts(tmp_path)).read_bytes())
    channel = JobChannel(tmp_path)
    for folder in (channel.work, tmp_path / form.EVENTS):
        folder.mkdir()
    options = EvaluateOptions.model_validate(
        {"concurrency": (1,), "requests": 8, "max_tokens": 4, "quality": False, "prefix_cache": "off"} | values
    )
    with running("broken_server.py") as url:
        spec = EvaluateSpec(
            variants=(Variant(name="one", source=url, kind="url", url=url, served_name="ok"),), options=options
        )
        progress = ChannelProgress(channel, 1.0)
        measurement = Measurement(spec, channel, workload, progress)
        setup = ServerSetup(lambda _: Path(sys.executable), lambda name: tmp_path / f"{name}.log", tmp_path)
        measurement.run(Pool(spec.variants, options, setup, progress))
    assert [(level.concurrency, level.acceptance_rate) for level in measurement.levels(0)] == [(1, 0.25)]


def test_a_server_that_ends_while_it_is_asked_in_turns_costs_only_its_own_run(tmp_path: Path) -> None:
    """Two blocks; the second server ends in the second: the first keeps both of its runs."""
    workload = parse_workload("made", Path(write_prompts(tmp_path)).read_bytes())
    channel = JobChannel(tmp_path)
    for folder in (channel.work, tmp_path / form.EVENTS):
        folder.mkdir()
    options = EvaluateOptions(
        concurrency=(1,), requests=3, max_tokens=4, quality=False, prefix_cache="off", repeats=2, warmup_seconds=0.0
    )
    with running("broken_server.py") as sound, running("broken_server.py") as ending:
        variants = tuple(
            Variant(name=name, source=url, kind="url", url=url, served_name="ok")
            for name, url in (("sound", sound), ("ending", ending))
        )
        spec = EvaluateSpec(variants=variants, options=options)
        progress = ChannelProgress(channel, 1.0)
        measurement = Measurement(spec, channel, workload, progress)
        setup = ServerSetup(lambda _: Path(sys.executable), lambda name: tmp_path / f"{name}.log", tmp_path)
        measurement.run(PoolThatLosesOne(variants, options, setup, progress, "resident"))
    assert [measured_blocks(level) for level in measurement.levels(0)] == [2]
    assert [measured_blocks(level) for level in measurement.levels(1)] == [1]
    assert measurement.lost_servers == {1: "The model server does not answer any more: it was killed."}
