"""The order in which variants are loaded: ABBA blocks, so that a steady drift of the machine favours none of them.

Knows nothing of servers or time; the evaluation runs the slots in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.domain.errors import RequestError


class Slot(NamedTuple):
    """One run of the load: `block` counts repeats from 0, `level` is a concurrency, `variant` an index."""

    block: int
    level: int
    variant: int


def schedule(
    variants: int, levels: Sequence[int], repeats: int, interleave: Literal["resident", "restart"] = "resident"
) -> list[Slot]:
    """Every (block, level, variant) once: variants forward in even blocks, backward in odd ones (A B C, C B A, ...).

    Over an even number of blocks each variant's mean position is the same, so a linear drift cancels (counterbalancing
    by reversed order: Jones and Kenward, Design and Analysis of Cross-Over Trials). `resident` loads the variants one
    after another at each level, with all servers up; `restart` runs all levels of one server before the next is
    started, and the last server of a block is the first of the next. Levels named twice count once.
    Raises RequestError where there is nothing to schedule.
    """
    if variants < 1 or repeats < 1 or not levels:
        raise RequestError("Nothing to measure: give at least one variant, one concurrency and one repeat.")
    once = list(dict.fromkeys(levels))
    return [slot for block in range(repeats) for slot in _block(block, once, variants, interleave)]


def _block(block: int, levels: list[int], variants: int, interleave: str) -> list[Slot]:
    order = range(variants) if block % 2 == 0 else range(variants - 1, -1, -1)
    if interleave == "restart":
        return [Slot(block, level, variant) for variant in order for level in levels]
    return [Slot(block, level, variant) for level in levels for variant in order]
