"""One run cut into slices, and the slices of several variants in turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.load import Load
from backend.domain.load.order import alternate, cut_slices
from backend.domain.load.records import LoadPlan


def plan(requests: int, warmup: int, seed: int | None = 7, name: str = "m") -> LoadPlan:
    return LoadPlan(
        url="http://127.0.0.1:1",
        model=name,
        load=Load("closed", 1),
        requests=requests,
        warmup_requests=warmup,
        prompts="prompts.jsonl",
        first_line=40,
        seed=seed,
    )


@given(st.integers(1, 30), st.integers(0, 4))
def test_slices_ask_line_by_line_what_the_whole_run_would_have_asked(requests: int, warmup: int) -> None:
    slices = cut_slices(plan(requests, warmup))
    lines = [part.first_line + position for part in slices for position in range(part.warmup_requests + 1)]
    seeds = [(part.seed or 0) + position for part in slices for position in range(part.warmup_requests + 1)]
    assert all(part.requests == 1 for part in slices)
    assert lines == list(range(40, 40 + warmup + requests))
    assert seeds == list(range(7, 7 + warmup + requests))


def test_a_run_without_seed_has_slices_without_seed() -> None:
    assert {part.seed for part in cut_slices(plan(3, 1, seed=None))} == {None}


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 9))
def test_each_prompt_is_asked_of_all_variants_before_the_next_one(variants: int, requests: int, first: int) -> None:
    runs = [cut_slices(plan(requests, 1, name=f"m{index}")) for index in range(variants)]
    turns = alternate(runs, first)
    rounds = [turns[begin : begin + variants] for begin in range(0, len(turns), variants)]
    assert len(rounds) == requests
    for number, members in enumerate(rounds):
        assert sorted(index for index, _ in members) == list(range(variants))
        assert all(part == runs[index][number] for index, part in members)


@given(st.integers(2, 5), st.integers(0, 9))
def test_no_variant_is_asked_before_another_more_often_than_behind_it(variants: int, first: int) -> None:
    requests = 2 * variants
    turns = alternate([cut_slices(plan(requests, 0)) for _ in range(variants)], 2 * first)
    before: Counter[tuple[int, int]] = Counter()
    for begin in range(0, len(turns), variants):
        members = [index for index, _ in turns[begin : begin + variants]]
        before.update((a, b) for place, a in enumerate(members) for b in members[place + 1 :])
    assert all(before[a, b] == requests // 2 for a in range(variants) for b in range(variants) if a != b)
