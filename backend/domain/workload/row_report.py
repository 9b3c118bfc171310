"""Report of how a workload's file was read: rows used, rows left out and why, and the unit of its times. Pure.

A row that cannot be used is left out and named; a file with more than one such row in ten is refused, with the same
list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from backend.domain.errors import InvalidWorkload
from backend.domain.figures import listed
from backend.domain.frozen import Frozen

RowUnit = Literal["line", "row", "entry"]
"""Parts of a file: lines of JSON, rows of a table, entries of a JSON list. They are numbered from 1, without a table's
row of names."""
PLURALS: dict[RowUnit, str] = {"line": "lines", "row": "rows", "entry": "entries"}
LEAST_USED = 10
"""One row in so many may be left out."""
NAMED_ROWS, NAMED_PER_REASON = 12, 4
"""Rows that are named in a reading, and of each reason in a sentence."""
NO_PROMPT = "there is no text in"


class UnusableRow(Exception):
    """A row that cannot be used. `reason` goes on after "line 7: "."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UnusedRow(Frozen):
    number: int
    reason: str


class ReadReport(Frozen):
    """Report of how a workload's file was read. An evaluation stores it with its workload."""

    unit: RowUnit
    rows: int
    """Number of rows that are not blank."""
    left_out: int = 0
    named: tuple[UnusedRow, ...] = ()
    """The first of those that were left out."""
    times: str | None = None
    """Unit in which times were read: `seconds`, `milliseconds`, ..., `moments`. None unless every row has a time."""
    seconds: float | None = None
    """From the first request to the last."""
    lengths: tuple[int, int] | None = None
    """Shortest and longest prompt in tokens of a trace that has lengths and no text, whose prompts are made."""
    exact_lengths: bool | None = None
    """True if a model's own tokenizer measured made prompts. Without one they have four characters per token."""
    block_size: int | None = None
    """Tokens of a block, where the trace says which blocks prompts share."""
    settings_left_out: tuple[str, ...] = ()
    """Fields of requests that change the prompt and are not sent, such as `tools`."""


def require_enough_rows(name: str, reading: ReadReport) -> None:
    """Raises InvalidWorkload where too many rows are left out, or none is left."""
    # 1. Enough.
    if reading.rows == 0:
        raise InvalidWorkload(f"{name} is empty: give at least one prompt.")
    if reading.left_out * LEAST_USED <= reading.rows:
        return
    # 2. Too many: say how many, why, and what to do.
    share = f"{reading.left_out:,} of {row_count_words(reading)}" if reading.rows > 1 else f"its only {reading.unit}"
    problem = f"cannot be used, and at most 1 in {LEAST_USED} may be left out ({unused_reasons(reading)})"
    sentence = f"{name}: {share} {problem}: correct the file"
    if any(NO_PROMPT in row.reason for row in reading.named):
        raise InvalidWorkload(f"{sentence}, or name the field of its prompts with {{}}.", "columns")
    raise InvalidWorkload(f"{sentence}.")


def unused_reasons(reading: ReadReport) -> str:
    """`line 3: no user speaks in it; lines 5, 9 and 4 more: it is not JSON`."""
    by_reason: dict[str, list[int]] = {}
    for row in reading.named:
        by_reason.setdefault(row.reason, []).append(row.number)
    more = reading.left_out - len(reading.named)
    parts = [_numbered(reading.unit, numbers, reason) for reason, numbers in by_reason.items()]
    return "; ".join([*parts, *([f"and {more:,} more"] if more else [])])


def row_count_words(reading: ReadReport) -> str:
    """`1 line`, `41 entries`."""
    return f"{reading.rows:,} {reading.unit if reading.rows == 1 else PLURALS[reading.unit]}"


def _numbered(unit: RowUnit, numbers: Sequence[int], reason: str) -> str:
    """`lines 5, 9 and 4 more: it is not JSON`."""
    rest = len(numbers) - NAMED_PER_REASON
    names = [f"{number:,}" for number in numbers[:NAMED_PER_REASON]] + ([f"{rest:,} more"] if rest > 0 else [])
    return f"{unit if len(numbers) == 1 else PLURALS[unit]} {listed(names)}: {reason}"
