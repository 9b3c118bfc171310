"""Lines of a workload are handed out once: whatever the load, no two runs, no warm-up and no greedy answer share
one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.domain.load.load import Load
from backend.domain.load.options import LoadOptions
from backend.domain.load.prompt_lines import (
    GREEDY_PROMPTS,
    GREEDY_STREAMS,
    allocate_lines,
    default_requests,
    find_shortage,
    lines_to_generate,
    warm_up_lines,
    warm_up_streams,
)

STREAMS = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(tuple)
LOADS = st.one_of(
    st.fixed_dictionaries({"concurrency": STREAMS}, optional={"requests": st.integers(1, 100)}),
    st.fixed_dictionaries({"concurrency": STREAMS, "seconds": st.floats(0.1, 60)}),
    st.fixed_dictionaries(
        {"rate": st.lists(st.floats(0.1, 50), min_size=1, max_size=3, unique=True).map(tuple)},
        optional={"seconds": st.floats(0.1, 60), "process": st.just("poisson"), "warmup_seconds": st.floats(0, 5)},
    ),
    st.fixed_dictionaries({"ramp": st.tuples(st.floats(0, 5), st.floats(0.1, 20)), "seconds": st.floats(0.1, 30)}),
)


def options(**chosen: Any) -> LoadOptions:
    return LoadOptions.model_validate(chosen)


@given(LOADS, st.integers(1, 6), st.integers(0, 5), st.booleans(), st.integers(1, 5))
@example({"concurrency": (1, 3), "seconds": 1.0}, 1, 0, False, 1)  # an even share is more than the smaller level needs
def test_no_two_runs_share_a_line_where_the_workload_is_long_enough(
    load: dict[str, Any], repeats: int, warmup: int, greedy: bool, turns: int
) -> None:
    request = options(**load, repeats=repeats, warmup_requests=warmup)
    has = lines_to_generate(request, greedy=greedy, turns=turns)
    assert find_shortage(request, has, greedy=greedy, turns=turns) is None, "what is generated is long enough"
    lines = allocate_lines(request, greedy=greedy, turns=turns, lines=has)
    runs = [
        range(begin, begin + lines.runs[level])
        for block in range(repeats)
        for level in range(len(request.loads))
        for begin in [lines.first(block, level)]
    ]
    used = [line for run in [range(lines.apart), *runs] for line in run]
    assert len(used) == len(set(used)) and max(used) < has
    assert lines.apart >= max(max(warm_up_streams(request)), GREEDY_PROMPTS + GREEDY_STREAMS if greedy else 0)
    for load_, run in zip(request.loads, lines.runs, strict=True):
        if load_.is_closed and turns == 1:
            assert run >= warm_up_lines(load_, request) + (request.requests or default_requests(load_))


@pytest.mark.parametrize(
    ("chosen", "lines", "needed"),
    [
        ({"concurrency": (1, 4)}, 150, 36 + 5 * (1 + 6 + 4 + 12)),
        ({"concurrency": (1, 4)}, 151, None),
        ({"concurrency": (1, 4), "prefix_cache": "off"}, 1, None),
        ({"concurrency": (1, 4), "prefix_cache": "per-run"}, 16, None),
        ({"concurrency": (1, 4), "prefix_cache": "per-run"}, 15, 16),
        ({"trace": True, "repeats": 2}, 10, 20),
        ({"trace": True, "repeats": 1}, 10, None),
        ({"trace": True, "repeats": 2, "prefix_cache": "per-run"}, 10, None),
        ({"concurrency": (1,), "seconds": 5.0}, 71, None),
        ({"concurrency": (1,), "seconds": 5.0}, 70, 71),
        ({"rate": (2.0,), "requests": 10, "repeats": 1}, 50, 51),
    ],
)
def test_a_workload_that_is_too_short_is_told_how_many_lines_the_load_takes(
    chosen: dict[str, Any], lines: int, needed: int | None
) -> None:
    assert find_shortage(options(**chosen), lines, greedy=True) == needed


def test_runs_that_only_seconds_end_share_what_the_workload_has() -> None:
    request = options(concurrency=(1, 4), seconds=10.0, repeats=2)
    lines = allocate_lines(request, greedy=False, lines=404)
    assert lines.runs == (100, 100) and lines.needed(2) == 404


def test_conversations_take_fewer_lines_than_requests() -> None:
    request = options(concurrency=(4,), requests=30, warmup_requests=2, repeats=1)
    assert allocate_lines(request, greedy=False, turns=3).runs == (8 + 10 + 4,)
    assert default_requests(Load("closed", 8)) == 24 and default_requests(Load("rate", 0.2)) == 8
