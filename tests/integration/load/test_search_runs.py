"""A search reads the server's own counters around each of its runs, as a schedule does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backend import channel as form
from backend.channel import JobChannel
from backend.domain.evaluation.document import EvaluateOptions, Variant
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
