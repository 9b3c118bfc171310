"""An evaluation's verdicts as a grid, variants down and concurrencies across: what `wording` says in sentences, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, VariantResult
from backend.domain.evaluation.verdict import Cause, Outcome
from backend.domain.figures import times
from backend.domain.load.load import Load
from backend.present.words.verdicts import (
    FASTER,
    NO_DIFFERENCE,
    by_level,
    quality_cost,
    throughput,
    title,
    upright,
)

Kind = Literal["baseline", "better", "worse", "even", "none"]
KINDS: dict[Outcome, Kind] = {"better": "better", "worse": "worse", "same": "even", "undecided": "none", "not_comparable": "none"}
IN_SHORT: dict[Cause, str] = {
    "client_limited": "not comparable", "failed_requests": "not comparable", "few_repeats": "too few repeats",
    "uncounted_tokens": "no verdict, tokens not counted",
}  # fmt: skip


class GridCell(NamedTuple):
    """One variant at one level: what its throughput came to, and every latency that was decided another way."""

    kind: Kind
    words: str
    interval: str = ""
    but: str = ""


class GridRow(NamedTuple):
    """One variant; `cells` without the loads it was not measured at. Speed never stands without quality."""

    name: str
    cells: dict[Load, GridCell]
    quality: str


def grid(evaluation: Evaluation) -> list[GridRow]:
    """One row a variant, the baseline first with its own output tokens/s."""
    compared = by_level(evaluation)
    return [_row(compared, index, result) for index, result in enumerate(evaluation.variants)]


def _row(compared: Mapping[tuple[str, Load], list[Comparison]], index: int, result: VariantResult) -> GridRow:
    cells = {}
    for level in result.levels:
        rows = compared.get((result.name, level.load))
        cells[level.load] = _cell(rows) if rows and index else _own(level, index)
    return GridRow(result.name, cells, quality_cost(result.quality))


def _own(level: Level, index: int) -> GridCell:
    """Its figure alone, where there is nothing to hold it against."""
    return GridCell("none" if index else "baseline", throughput(level))


def _cell(rows: list[Comparison]) -> GridCell:
    first = next((row for row in rows if higher_is_better(row.metric)), rows[0])
    others = [row for row in rows if row is not first and row.significant and row.outcome != first.outcome]
    said = [f"{title(row.metric)} {_outcome(row)[0]}" for row in others]
    words, interval = _outcome(first)
    return GridCell(KINDS[first.outcome], words, interval, f"but {', '.join(said)}" if said else "")


def _outcome(row: Comparison) -> tuple[str, str]:
    """`1.80x faster` and `(1.70 to 1.90)`, `no significant difference` and its interval, or why there is no test."""
    if row.why is not None:
        return IN_SHORT.get(row.why.cause, "no verdict"), ""
    if row.outcome == "same":
        return NO_DIFFERENCE, _span(times(row.ratio or 1.0, row.ci95))[1]
    factor, interval = _span(times(*upright(row)))
    return f"{factor} {FASTER[row.outcome]}", interval


def _span(said: str) -> tuple[str, str]:
    """`1.80x (95% 1.70 to 1.90)` as its factor and its interval in brackets."""
    factor, _, rest = said.partition(" ")
    return factor, rest.replace("(95% ", "(")
