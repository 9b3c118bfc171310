"""The report's verdict cards: for each variant its quality, and for each level the factor and the sentence. No HTML."""

from __future__ import annotations

from typing import Any

from backend.domain.evaluation.document import Comparison, Evaluation, VariantResult
from backend.domain.figures import factor_and_bounds
from backend.domain.load.load import Load
from backend.present.words.measured import quality_cost, throughput
from backend.present.words.verdicts import verdicts

MARKS = {"better": ("better", "▲"), "worse": ("worse", "▼"), "same": ("even", "="), "undecided": ("none", "")}


def headline(evaluation: Evaluation) -> str:
    """The page's title: who was measured against whom."""
    names = [result.name for result in evaluation.variants]
    if len(names) < 2:
        return f"{names[0]}, measured" if names else "An empty evaluation"
    *most, last = names[1:]
    return f"{', '.join(most)} and {last} against {names[0]}" if most else f"{last} against {names[0]}"


def cards(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One a variant, the baseline first with its own figures."""
    said: dict[str, list[str]] = {}
    for verdict in verdicts(evaluation):
        said.setdefault(verdict.variant, []).append(verdict.text)
    rows: dict[str, dict[Load, Comparison]] = {}
    for row in filter(_is_throughput, evaluation.comparison):
        rows.setdefault(row.variant, {})[row.load] = row
    return [
        _card(index, result, rows.get(result.name, {}), said.get(result.name, []))
        for index, result in enumerate(evaluation.variants)
    ]


def _card(index: int, result: VariantResult, rows: dict[Load, Comparison], said: list[str]) -> dict[str, Any]:
    tiles = [
        {
            "level": level.load.words,
            "throughput": throughput(level),
            **(_tile(rows[level.load]) if level.load in rows else _baseline_tile()),
        }
        for level in result.levels
    ]
    return {
        "name": result.name,
        "index": index,
        "is_baseline": index == 0,
        "quality": quality_cost(result.quality),
        "tiles": tiles,
        "sentences": said,
    }


def _is_throughput(row: Comparison) -> bool:
    return row.metric.startswith("output_tokens_per_s")


def _baseline_tile() -> dict[str, str]:
    return {"kind": "plain", "mark": "", "factor": "", "detail": ""}


def _tile(row: Comparison) -> dict[str, str]:
    """`mark` says in a shape what the colour says: up, down, no difference, or no verdict."""
    if row.ratio is None or row.outcome == "not_comparable":
        return {"kind": "none", "mark": "", "factor": "–", "detail": "not comparable" if row.ratio else "no verdict"}
    factor, bounds = factor_and_bounds(row.ratio, row.ci95)
    detail = f"95% {bounds}" if bounds else ""
    if row.outcome == "same":
        detail = f"no significant difference, {detail}"
    elif row.why is not None:
        detail = f"no verdict, {detail}".removesuffix(", ")
    kind, mark = MARKS[row.outcome]
    return {"kind": kind, "mark": mark, "factor": factor.replace("x", "×"), "detail": detail}
