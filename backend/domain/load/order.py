"""The order in which variants are loaded, and the pairing of requests of two runs that asked the same. Pure.

Variants are loaded in ABBA blocks, so that a steady drift of the machine favours none of them. Where all servers are
up and one stream sends, their requests alternate within the block: each prompt is asked of all variants, one right
after the other, so that what slows the machine for some seconds slows them all. Requests are paired by what they
asked, never by the order of sending: where a turn follows an answer, that order depends on which answer ends first, so
it differs from run to run. What a request asks does not: the line of the prompt, the turn, and how often that line was
used before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from backend.domain.errors import RequestError
from backend.domain.load.records import LoadPlan, RequestRecord


class Slot(NamedTuple):
    """One run of the load: `block` counts repeats from 0, `level` and `variant` are indexes of their lists."""

    block: int
    level: int
    variant: int


def schedule(
    variants: int,
    levels: Sequence[int],
    repeats: int,
    interleave: Literal["resident", "restart"] = "resident",
    first: int = 0,
) -> list[Slot]:
    """Every (block, level, variant) once: variants forward in even blocks, backward in odd ones (A B C, C B A, ...).

    Over an even number of blocks each variant's mean position is the same, so a linear drift cancels (counterbalancing
    by reversed order: Jones and Kenward, Design and Analysis of Cross-Over Trials). `resident` loads the variants one
    after another at each level, with all servers up; `restart` runs all levels of one server before the next is
    started, and the last server of a block is the first of the next. Levels named twice count once. Blocks before
    `first` are left out: they were measured earlier.
    Raises RequestError where there is nothing to schedule.
    """
    if variants < 1 or repeats < 1 or not levels:
        raise RequestError("Nothing to measure: give at least one variant, one concurrency and one repeat.")
    # Earlier blocks are left out, and still decide the direction of the later ones.
    once = list(dict.fromkeys(levels))
    slots: list[Slot] = []
    for block in range(first, repeats):
        slots += _block(block, once, variants, interleave)
    return slots


def _block(block: int, levels: list[int], variants: int, interleave: str) -> list[Slot]:
    order = range(variants) if block % 2 == 0 else range(variants - 1, -1, -1)
    if interleave == "restart":
        return [Slot(block, level, variant) for variant in order for level in levels]
    return [Slot(block, level, variant) for level in levels for variant in order]


def cut_slices(plan: LoadPlan) -> list[LoadPlan]:
    """Cut one run into slices that may alternate with those of other variants, in the order of their prompts.

    A slice is one request; the run's warm-up is in front of the first. The plan is of one stream
    (`prompt_lines.is_cut`): filling and draining more streams would be most of so short a slice.
    """
    assert plan.requests is not None
    first = plan.model_copy(update={"requests": 1})
    slices = [first]
    for number in range(1, plan.requests):
        position = plan.warmup_requests + number
        seed = None if plan.seed is None else plan.seed + position
        changes = {"first_line": plan.first_line + position, "seed": seed, "warmup_requests": 0}
        slices.append(first.model_copy(update=changes))
    return slices


def alternate(runs: Sequence[Sequence[LoadPlan]], first: int = 0) -> list[tuple[int, LoadPlan]]:
    """Return the slices of all runs, slice by slice, each with the index of its run.

    The run that begins moves on from slice to slice, and every second slice is in reverse order, so that over two
    rounds each run is as often before as behind each other one. `first` shifts the rotation, for the next block.
    """
    ordered = []
    for number in range(max(map(len, runs), default=0)):
        turn = number + first
        rotation = [(turn // 2 + place) % len(runs) for place in range(len(runs))]
        for index in rotation if turn % 2 == 0 else reversed(rotation):
            if number < len(runs[index]):
                ordered.append((index, runs[index][number]))
    return ordered


class RequestKey(NamedTuple):
    """Identifies what a request asked; the same in every run of one plan."""

    line: int
    turn: int | None
    from_warm_up: bool
    """The request, or its conversation, began in warm-up, which takes prompts of its own from the first line on."""
    time: int
    """0 where the line was used for the first time, then 1, 2, ..."""


def by_request_key(records: Sequence[RequestRecord]) -> dict[RequestKey, RequestRecord]:
    """Index all requests of one run. Warm-up and failed ones are needed to count how often a line was used."""
    # 1. Where each use of a line began: a conversation, or a single request.
    warm = {_begun(record) for record in records if record.warm}
    begun: dict[tuple[int, bool], set[tuple[bool, int]]] = {}
    for record in records:
        begun.setdefault((record.prompt, _begun(record) in warm), set()).add(_begun(record))
    # 2. Number the uses of a line: they are taken in the order of sending, whatever the timing.
    times = {key: {place: time for time, place in enumerate(sorted(places))} for key, places in begun.items()}
    # 3. The key of each request.
    request_records = {}
    for record in records:
        key = (record.prompt, _begun(record) in warm)
        request_records[RequestKey(record.prompt, record.turn, key[1], times[key][_begun(record)])] = record
    return request_records


def request_pairs(
    baseline: Sequence[RequestRecord], variant: Sequence[RequestRecord]
) -> Iterator[tuple[RequestRecord, RequestRecord]]:
    """Yield measured requests of two runs of one block that asked the same and were both answered.

    They come in the order in which the variant's were sent.
    """
    baseline_records, variant_records = by_request_key(baseline), by_request_key(variant)
    for key, record in sorted(variant_records.items(), key=lambda item: item[1].index):
        other = baseline_records.get(key)
        if other is not None and all(request.ok and not request.warm for request in (record, other)):
            yield other, record


def _begun(record: RequestRecord) -> tuple[bool, int]:
    """Identify the conversation of the request, or the request itself."""
    return (False, record.index) if record.session is None else (True, record.session)
