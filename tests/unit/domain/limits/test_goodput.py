"""Goodput against its definition, request by request; records as files of this version and of earlier ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.domain.evaluation.metrics import LIMITABLE_METRICS, latency_ms
from backend.domain.limits.goodput import CountWithin, RequestLimits, best_goodputs, level_goodputs
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.maths.intervals import wilson
from backend.service.evaluations import latencies
from backend.service.evaluations.evaluations import EvaluationView
from backend.worker.measuring.records import MeasuredLevel, write_records
from tests import simulated

LEVELS = (1, 4)
SECONDS = st.floats(0.001, 2.0)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Warm or not, in one chunk or two, answered or reset."""
    sent, first, more = draw(SECONDS), draw(SECONDS), draw(SECONDS)
    answered, chunks = draw(st.booleans()), draw(st.sampled_from([1, 2]))
    times = (sent + first, sent + first + more)[:chunks] if answered else ()
    return RequestRecord(
        index=0,
        stream=0,
        prompt=0,
        warm=draw(st.booleans()),
        intended=sent - 0.001,
        sent=sent,
        end=sent + first + more + 0.01,
        clock=draw(st.sampled_from(["sent", "intended"])),
        status="ok" if answered else "reset",
        first_content=times[0] if times else None,
        last_content=times[-1] if times else None,
        chunk_times=times,
        chunk_tokens=(1.0, 5.0)[: len(times)],
        output_tokens=5 if answered else None,
        text="x",
    )


RUNS = st.lists(st.lists(records(), max_size=6), min_size=1, max_size=2)
LIMITS = st.builds(RequestLimits, **dict.fromkeys(LIMITABLE_METRICS, st.none() | st.floats(1, 3000)))


def view(folder: Path, late: tuple[int, ...] = ()) -> EvaluationView:
    document = simulated.evaluation(names=("a", "b"), speeds=(1.0, 2.0), levels=LEVELS)
    audit = document.variants[0].levels[0].audit.model_copy(update={"late_blocks": late})
    variants = [
        result.model_copy(update={"levels": [level.model_copy(update={"audit": audit}) for level in result.levels]})
        for result in document.variants
    ]
    document = document.model_copy(update={"variants": variants})
    return EvaluationView(
        id="e-1",
        job_id="j-1",
        title="t",
        baseline="a",
        path=str(folder),
        created_at=datetime.now(UTC),
        document=document,
    )


def within(record: RequestRecord, limits: RequestLimits) -> bool:
    values = {name: latency_ms(name, record) for name in LIMITABLE_METRICS}
    return record.ok and all(
        (value := values[name]) is not None and value <= limit for name, limit in limits.latency_limits
    )


@settings(max_examples=20)  # each writes and reads a file
@given(runs=st.lists(RUNS, min_size=4, max_size=4), limits=LIMITS, late=st.sampled_from([(), (0,), (1,)]))
def test_counts_are_those_of_every_request_looked_at_alone(
    runs: list[list[list[RequestRecord]]],
    limits: RequestLimits,
    late: tuple[int, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """`late`: blocks that are not part of the levels."""
    folder = tmp_path_factory.mktemp("records")
    keys = [(variant, Load("closed", level)) for variant in range(2) for level in LEVELS]
    measured = [MeasuredLevel(variant, load, own) for (variant, load), own in zip(keys, runs, strict=True)]
    write_records(folder / "records.parquet", ["a", "b"], measured)
    expected = {}
    parts = [[run for block, run in enumerate(own) if block not in late] for own in runs]
    for (variant, load), own, part in zip(keys, runs, parts, strict=True):
        counted = [record for run in part for record in run if not record.warm]
        if any(not record.warm for run in own for record in run):
            expected["ab"[variant], load] = CountWithin(sum(within(record, limits) for record in counted), len(counted))
    assert latencies.count_within(view(folder, late), limits) == expected
    for (variant, load), own in zip(keys, parts, strict=True):
        for metric in LIMITABLE_METRICS:
            values = [latency_ms(metric, record) for run in own for record in run if not record.warm]
            shown = latencies.sorted_latencies(view(folder, late), "ab"[variant], load, metric)
            assert shown == sorted(value for value in values if value is not None)


def test_goodput_is_the_share_of_the_requests_a_second_with_its_interval() -> None:
    document = simulated.evaluation(names=("a", "b"), speeds=(1.0, 2.0), levels=LEVELS)
    low, high = (Load("closed", streams) for streams in LEVELS)
    counts = {("a", low): CountWithin(30, 40), ("a", high): CountWithin(0, 160), ("b", high): CountWithin(80, 160)}
    one, four = level_goodputs(document.variants[0], counts)
    duration = document.variants[0].levels[0].duration_s
    assert one.requests_per_s == pytest.approx(30 / duration) and one.interval == wilson(30, 40)
    assert one.requests_per_s_interval[0] == pytest.approx(wilson(30, 40)[0] * 40 / duration)
    assert four.requests_per_s == 0
    goodputs = best_goodputs(document, counts)
    assert goodputs["a"] == one and goodputs["b"] is not None and goodputs["b"].share == 0.5
    assert best_goodputs(document, {}) == {"a": None, "b": None}


def test_an_unsound_level_is_no_best_one() -> None:
    levels = [simulated.level(1), simulated.level(4, client_limited=True)]
    document = simulated.evaluation().model_copy(update={"variants": [simulated.result("a", levels)]})
    result = best_goodputs(document, {("a", level.load): CountWithin(1, 160) for level in levels})["a"]
    assert result is not None and result.level.concurrency == 1
