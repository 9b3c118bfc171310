"""An evaluation's verdicts as a grid, variants down and concurrencies across: what `wording` says in sentences, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.evaluation.document import Comparison, Evaluation, Level, VariantResult
from backend.domain.figures import UNCOUNTED, times
from backend.present.words.verdicts import (
    NO_DIFFERENCE,
    NOT_COMPARABLE,
    better_factor,
    by_level,
    direction,
    is_decided,
    is_significant,
    quality_cost,
    throughput,
)

Kind = Literal["baseline", "better", "worse", "even", "none"]


class GridCell(NamedTuple):
    """One variant at one level: what its throughput came to, and every latency that was decided another way."""

    kind: Kind
    words: str
    but: str = ""


class GridRow(NamedTuple):
    """One variant; `cells` by level (streams, or an open loop in words), without those it has not. Speed never stands without
    quality."""

    name: str
    cells: dict[int | str, GridCell]
    quality: str


def grid(evaluation: Evaluation) -> list[GridRow]:
    """One row a variant, the baseline first with its own output tokens/s."""
    compared = by_level(evaluation)
    return [_row(compared, index, result) for index, result in enumerate(evaluation.variants)]


def keys(evaluation: Evaluation) -> list[int | str]:
    """Every level that any variant has, by rising load."""
    found = {level.key: level.rate or level.concurrency for result in evaluation.variants for level in result.levels}
    return sorted(found, key=found.__getitem__)


def _row(compared: Mapping[tuple[str, int | str], list[Comparison]], index: int, result: VariantResult) -> GridRow:
    cells = {}
    for level in result.levels:
        rows = compared.get((result.name, level.key))
        cells[level.key] = _cell(rows) if rows and index else _own(level, index)
    return GridRow(result.name, cells, quality_cost(result.quality))


def _own(level: Level, index: int) -> GridCell:
    """Its figure alone, where there is nothing to hold it against."""
    return GridCell("none" if index else "baseline", throughput(level))


def _cell(rows: list[Comparison]) -> GridCell:
    first = next((row for row in rows if direction(row.metric).higher_is_better), rows[0])
    kind, words = _outcome(first)
    others = [row for row in rows if row is not first and is_significant(row) and _outcome(row)[0] != kind]
    said = [f"{direction(row.metric).title} {_outcome(row)[1].partition(' (')[0]}" for row in others]
    return GridCell(kind, words, f"but {', '.join(said)}" if said else "")


def _outcome(row: Comparison) -> tuple[Kind, str]:
    """`1.80x faster (1.70 to 1.90)`, `no significant difference (0.97 to 1.04)`, or what stands in the way of a verdict."""
    if row.ratio is None or not is_decided(row):
        return "none", _obstacle(row)
    interval = row.ci95 or (row.ratio, row.ratio)
    if not is_significant(row):
        return "even", f"{NO_DIFFERENCE} {_span(times(row.ratio, interval))[1]}"
    faster = better_factor(row.metric, row.ratio) > 1
    if row.ratio < 1:
        factor, span = _span(times(1 / row.ratio, (1 / interval[1], 1 / interval[0])))
    else:
        factor, span = _span(times(row.ratio, interval))
    return ("better", f"{factor} faster {span}") if faster else ("worse", f"{factor} slower {span}")


def _span(said: str) -> tuple[str, str]:
    """`1.80x (95% 1.70 to 1.90)` as its factor and its interval in brackets."""
    factor, _, rest = said.partition(" ")
    return factor, rest.replace("(95% ", "(")


def _obstacle(row: Comparison) -> str:
    if UNCOUNTED in row.verdict:
        return "no verdict, tokens not counted"
    return next((words for words in (NOT_COMPARABLE, "too few repeats") if words in row.verdict), "no verdict")
