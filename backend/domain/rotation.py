"""Which line of a workload a request has: every block and level starts at another one, the same for every variant. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STEP = 8
"""Lines between the starts of two neighbouring levels: prefixes of one level are not those of the next."""


def first_line(levels: Sequence[int], block: int, concurrency: int) -> int:
    """Counted from 0 and beyond the workload's end, where it begins anew. Raises ValueError for a level that is not measured."""
    return (block * len(levels) + list(levels).index(concurrency)) * STEP


def line(levels: Sequence[int], block: int, concurrency: int, prompt: int, lines: int) -> int:
    """The workload's line, from 0, of the request whose record says `prompt`."""
    return (first_line(levels, block, concurrency) + prompt) % lines
