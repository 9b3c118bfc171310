"""Which line of a workload a request has: every block and level starts at another one, the same for every variant. Pure."""

from __future__ import annotations

STEP = 8
"""Lines between the starts of two neighbouring levels: prefixes of one level are not those of the next."""


def first_line(levels: int, block: int, level: int) -> int:
    """Of the level with that number, from 0, of so many; counted beyond the workload's end, where it begins anew."""
    return (block * levels + level) * STEP


def line(levels: int, block: int, level: int, prompt: int, lines: int) -> int:
    """The workload's line, from 0, of the request whose record says `prompt`."""
    return (first_line(levels, block, level) + prompt) % lines
