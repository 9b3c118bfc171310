"""Blocks in which the load generator was late are not part of a level, for any variant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.channel import JobChannel
from backend.domain.evaluation.blocks.late_blocks import MOST_LEFT_OUT, find_late_blocks
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import EvaluateOptions, Level, Variant, VariantResult
from backend.domain.evaluation.prefix_cache import PrefixHits
from backend.domain.evaluation.soundness import late_warning
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.limits import fail_conditions
from backend.domain.load.load import Load
from backend.domain.load.records import Disturbance, RequestRecord
from backend.domain.workload.workload import Workload
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.runs import MeasuredRun
from backend.worker.progress import ChannelProgress
from tests import simulated
from tests.simulated import audit

QUIET = Disturbance(seconds=10, cores=2, others=0.0, stolen=0.0, throttled=None)
LOAD = Load("closed", 1.0)
BLOCKS = 6


def answer(seconds: float) -> RequestRecord:
    """8 tokens in so many seconds."""
    return RequestRecord(
        index=0,
        stream=0,
        prompt=0,
        warm=False,
        intended=0.0,
        sent=0.0,
        end=seconds,
        status="ok",
        first_content=seconds / 2,
        last_content=seconds,
        chunk_times=(seconds / 2, seconds),
        chunk_tokens=(4.0, 8.0),
        prompt_tokens=10,
        output_tokens=8,
        text="some text",
    )


def measured(folder: Path, late: set[tuple[int, int]], slow: float = 9.0) -> tuple[Measurement, list[VariantResult]]:
    """An evaluation of two variants, the second twice as fast. `late`: (variant, block), which answers in `slow`
    seconds."""
    channel, workload = JobChannel(folder), Workload(name="made", sha256="0", prompts=())
    variants = tuple(Variant(name=name, source=name, kind="model") for name in "ab")
    options = EvaluateOptions(concurrency=(1,), repeats=BLOCKS, quality=False)
    spec = EvaluateSpec(variants=variants, options=options)
    measurement = Measurement(spec, channel, workload, ChannelProgress(channel, 1.0))
    for variant in range(2):
        for block in range(BLOCKS):
            own = (variant, block) in late
            seconds = slow if own else (2 - variant) * (1 + 0.01 * block * (1 + variant))
            run = MeasuredRun([answer(seconds)], audit(late=own), QUIET, None, {}, PrefixHits(None, 0, 10))
            measurement.runs.setdefault((variant, LOAD), []).append(run)
    results = [
        VariantResult(name=variant.name, variant=variant, levels=measurement.levels(index))
        for index, variant in enumerate(variants)
    ]
    return measurement, results


def levels(results: list[VariantResult]) -> list[Level]:
    return [result.levels[0] for result in results]


def test_a_late_block_is_left_out_for_every_variant_and_the_rest_is_compared(tmp_path: Path) -> None:
    measurement, results = measured(tmp_path, {(1, 2)})
    assert [level.audit.late_blocks for level in levels(results)] == [(2,), (2,)]
    assert [(level.repeats, level.client_limited, level.requests) for level in levels(results)] == [(5, False, 5)] * 2
    assert all(level.client_latency_ms and level.client_latency_ms.p99 < 3000 for level in levels(results))
    row = next(row for row in compare(results) if row.metric == "output_tokens_per_s")
    assert row.outcome == "better" and row.ratio == pytest.approx(1.95, abs=0.05)
    assert [len(row.runs) for row in measurement.rows()] == [BLOCKS, BLOCKS], "every request is stored all the same"
    assert late_warning(levels(results)) == (
        "The load generator was late in 1 of 6 blocks at 1 stream: what was measured then is left out everywhere."
    )


def test_a_variant_that_was_lost_after_a_late_block_has_no_level(tmp_path: Path) -> None:
    measurement, _ = measured(tmp_path, {(1, 0)})
    del measurement.runs[1, LOAD][1:]
    assert [len(measurement.levels(variant)) for variant in range(2)] == [1, 0]


def test_a_level_is_not_valid_where_too_many_blocks_are_late(tmp_path: Path) -> None:
    _, results = measured(tmp_path, {(0, 0), (1, 1), (1, 4)})
    assert [level.client_limited for level in levels(results)] == [True, True]
    assert [level.audit.late_blocks for level in levels(results)] == [(), ()] and late_warning(levels(results)) is None
    assert {row.outcome for row in compare(results)} == {"not_comparable"}


def test_a_level_that_the_server_held_up_is_not_valid() -> None:
    """Requests that wait for a connection, which a slow server keeps: without them it would look fast."""
    assert find_late_blocks([[audit(late=False, limited=True), *[audit(late=False)] * 5]]) == ()


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), max_size=4))
def test_what_is_left_out_is_late_and_never_more_than_a_third(late: list[list[bool]]) -> None:
    left_out = find_late_blocks([[audit(late=each) for each in own] for own in late])
    blocks = max((len(own) for own in late), default=0)
    assert len(left_out) <= MOST_LEFT_OUT * blocks and list(left_out) == sorted(set(left_out))
    every = {block for own in late for block, each in enumerate(own) if each}
    assert set(left_out) in (every, set())


def test_a_condition_does_not_take_a_block_that_is_left_out_for_one_that_is_missing(tmp_path: Path) -> None:
    _, results = measured(tmp_path, {(1, 2)})
    document = simulated.evaluation(names=("a", "b"), speeds=(1.0, 2.0), levels=(1,))
    document = document.model_copy(
        update={"variants": results, "options": EvaluateOptions(concurrency=(1,), repeats=BLOCKS, quality=False)}
    )
    assert fail_conditions.find_breaches(document, [fail_conditions.parse_condition("ttft_p95 > 5s")]) == []
