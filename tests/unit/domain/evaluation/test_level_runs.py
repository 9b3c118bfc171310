"""What the runs of a load come to: levels of a search and of a schedule alike, and the marks that only a sound level
may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.channel import JobChannel
from backend.domain.evaluation.document import EvaluateOptions, Level, Variant
from backend.domain.evaluation.prefix_cache import PrefixHits
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.limits.objective import ObjectiveCheck
from backend.domain.load import counters
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance, RequestRecord
from backend.domain.workload.workload import Workload
from backend.evaluate import load_plans
from backend.evaluate.load_plans import SearchedLevel
from backend.worker.measuring import runs
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.runs import MeasuredRun
from backend.worker.progress import ChannelProgress
from tests import simulated

QUIET = Disturbance(seconds=10, cores=4, others=0.1, stolen=0.0, throttled=None)
BUSY = QUIET.model_copy(update={"others": 3.0})
PLAIN = Variant(name="v", source="v", kind="model")
SEARCHED = EvaluateOptions(concurrency=(1,), sweep=("latency_p90<=5s",), quality=False)
MET, MISSED = ObjectiveCheck("kept", (1.0,), ((0.9, 1.0),)), ObjectiveCheck("missed", (0.1,), ((0.0, 0.2),))


def run(disturbance: Disturbance = QUIET, **changed: Any) -> MeasuredRun:
    """One answer of 8 tokens in a second."""
    record = RequestRecord(
        index=0,
        stream=0,
        prompt=0,
        warm=False,
        intended=0.0,
        sent=0.0,
        end=1.0,
        status="ok",
        first_content=0.5,
        last_content=0.9,
        chunk_times=(0.5, 0.9),
        chunk_tokens=(4.0, 8.0),
        prompt_tokens=10,
        output_tokens=8,
        text="some text",
    )
    audit = Audit(
        wall_s=1.0,
        cpu_s=0.1,
        parse_cpu_s=0.1,
        loop_lag_ms_p50=0.0,
        loop_lag_ms_p99=0.0,
        loop_lag_ms_max=0.0,
        coalesced_share=0.0,
        achieved_concurrency=1.0,
        steady_start=None,
        steady_end=None,
        usage="continuous",
        client_limited=False,
    )
    measured_run = MeasuredRun([record], audit, disturbance, None, {}, PrefixHits(None, 0, 10))
    return measured_run._replace(**changed)


def searched_level(streams: float, check: ObjectiveCheck = MET) -> SearchedLevel:
    return SearchedLevel(Load("closed", streams), [], check)


def marks(levels: list[Level], searched: list[SearchedLevel]) -> dict[int, tuple[bool, bool]]:
    """Streams -> (highest, knee)."""
    marked = load_plans.mark_levels(levels, searched, SEARCHED)
    return {level.concurrency: (level.slo.highest, level.slo.knee) for level in marked if level.slo}


def test_the_highest_level_is_the_highest_that_the_client_did_not_hold_back() -> None:
    levels = [simulated.level(32), simulated.level(64, client_limited=True)]
    assert marks(levels, [searched_level(32), searched_level(64)]) == {32: (True, False), 64: (False, False)}
    assert marks(levels[1:], [searched_level(64)]) == {64: (False, False)}


def test_a_level_that_missed_bounds_the_highest() -> None:
    levels = [simulated.level(streams) for streams in (4, 16, 8)]
    highest = {
        streams: each
        for streams, (each, _) in marks(
            levels, [searched_level(4), searched_level(16, MISSED), searched_level(8)]
        ).items()
    }
    assert highest == {4: False, 8: True, 16: False}


def test_the_knee_is_looked_for_among_sound_levels_only() -> None:
    rates = {1: 100.0, 2: 190.0, 4: 200.0}
    sound = [simulated.level(streams, output_tokens_per_s=rate) for streams, rate in rates.items()]
    assert marks(sound, [searched_level(streams) for streams in rates]) == {
        1: (False, False),
        2: (False, True),
        4: (True, False),
    }
    held_back = simulated.level(64, client_limited=True, output_tokens_per_s=9000.0)
    assert marks([*sound, held_back], [*(searched_level(streams) for streams in rates), searched_level(64)])[2] == (
        False,
        True,
    )
    two = [*sound[:1], sound[1].model_copy(update={"client_limited": True}), sound[2]]
    assert not any(knee for _, knee in marks(two, [searched_level(streams) for streams in rates]).values())


def test_the_acceptance_rate_is_over_the_tokens_of_all_runs_that_were_counted() -> None:
    messages = [{"accepted_tokens": 10, "drafted_tokens": 40}, {}, {"accepted_tokens": 20, "drafted_tokens": 20}]
    counted = [run(counted=each) for each in messages]
    assert runs.summarise_runs(Load("closed", 1.0), counted, SEARCHED, PLAIN).acceptance_rate == 0.5
    assert runs.summarise_runs(Load("closed", 1.0), [run()], SEARCHED, PLAIN).acceptance_rate is None
    assert counters.counter_increase({"a": 1.0, "b": 4.0}, {"a": 11.0, "b": 44.0}) == {"a": 10, "b": 40}
    assert counters.counter_increase({}, {"a": 1.0}) == counters.counter_increase({"a": 1.0}, {}) == {}
    assert counters.counter_increase({"a": 10.0, "b": 40.0}, {"a": 3.0, "b": 80.0}) == {}, (
        "the server was started anew in between"
    )


def test_a_level_has_its_worst_disturbance_and_the_energy_of_servers_here() -> None:
    created = runs.summarise_runs(
        Load("closed", 1.0), [run(joules={"GPU 0": 3.0}), run(BUSY, joules={"GPU 0": 5.0})], SEARCHED, PLAIN
    )
    assert created.audit.disturbance == BUSY
    assert created.energy is not None
    assert (created.energy.total, created.energy.output_tokens) == (8.0, 16)
    assert runs.summarise_runs(Load("closed", 1.0), [run()], SEARCHED, PLAIN).energy is None


@pytest.mark.parametrize(
    ("kind", "message"), [("model", "not quiet in 1 of 2 levels (while `one` was measured at 2 streams"), ("url", None)]
)
def test_a_busy_machine_is_told_of_a_search_too(tmp_path: Path, kind: Any, message: str | None) -> None:
    channel, workload = JobChannel(tmp_path), Workload(name="made", sha256="0", prompts=())
    spec = EvaluateSpec(variants=(Variant(name="one", source="one", kind=kind),), options=SEARCHED)
    measurement = Measurement(spec, channel, workload, ChannelProgress(channel, 1.0))
    judged = {1.0: [run()], 2.0: [run(), run(BUSY)]}
    measurement.searched[0] = [searched_level(streams) for streams in judged]
    measurement.runs.update(
        {(0, Load("closed", streams)): done for streams, done in {**judged, 4.0: [run(BUSY)]}.items()}
    )
    disturbance_warning = measurement.disturbance_warning()
    assert disturbance_warning is None if message is None else message in str(disturbance_warning)
    assert [(level.concurrency, level.repeats) for level in measurement.levels(0)] == [(1, 1), (2, 2)]
    assert [(row.load.value, len(row.runs)) for row in measurement.rows()] == [(1, 1), (2, 2)]
