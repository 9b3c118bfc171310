"""The report's tables as titles, columns and written cells. No HTML."""

from __future__ import annotations

from typing import Any

from backend.domain.charts_table import (
    MORE_COLUMNS,
    MORE_PRICE_COLUMNS,
    PRICE_COLUMNS,
    THROUGHPUT_COLUMNS,
    Cell,
    Row,
    distribution_table,
    latency_columns,
    rows,
)
from backend.domain.evaluation import Evaluation, Level, Quality, VariantResult
from backend.domain.wording import direction, figure, scored, times

TOKEN_TIMES = {"continuous": "server", "final": "spread", "none": "none"}
"""Where the moment of each token is known from."""


def tables(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Name -> {columns, rows}: columns of {text, number}, rows of {starts, cells}; `starts` where another variant begins."""
    return {
        "latency": _table(rows(evaluation, latency_columns())),
        "throughput": _table(rows(evaluation, {**THROUGHPUT_COLUMNS, **MORE_COLUMNS})),
        "price": _table(rows(evaluation, {**PRICE_COLUMNS, **_more_prices(evaluation)})),
        "comparison": _table(_comparison(evaluation)),
        "distributions": _table(distribution_table(evaluation)),
        "quality": _table([_quality(result) for result in evaluation.variants]),
        "validity": _table([_validity(result, level) for result in evaluation.variants for level in result.levels]),
    }


def _more_prices(evaluation: Evaluation) -> dict[str, Any]:
    total, blended, sagemaker = MORE_PRICE_COLUMNS.items()
    ratio = f"{evaluation.options.input_output_ratio:g}:1"
    return dict([total, (f"{blended[0]} ({ratio})", blended[1]), (f"{sagemaker[0]} ({ratio})", sagemaker[1])])


def _comparison(evaluation: Evaluation) -> list[Row]:
    return [
        {
            "Variant": row.variant,
            "Concurrency": row.key,
            "Metric": f"{direction(row.metric).title} ({row.metric})",
            "Ratio to baseline": None if row.ratio is None else times(row.ratio),
            "95% interval": None if row.ci95 is None else times(1.0, row.ci95).partition("95% ")[2].rstrip(")"),
            "p, adjusted": None if row.p_value is None else f"{row.p_value:.2g}",
            "Verdict": row.verdict,
        }
        for row in evaluation.comparison
    ]


def _quality(result: VariantResult) -> Row:
    quality = result.quality or Quality(scored="unavailable")
    low, high = quality.kl_ci95 or (None, None)
    return {
        "Variant": result.name,
        "Perplexity": quality.perplexity,
        "Perplexity of the original": quality.perplexity_original,
        "Mean KL (nats a token)": quality.kl_mean,
        "KL, 95% from": low,
        "KL, 95% to": high,
        "Greedy match": _share(quality.greedy_match),
        "First divergences / tokens": _share(quality.first_divergence_share, 2),
        "Scored on": scored(result),
    }


def _validity(result: VariantResult, level: Level) -> Row:
    audit = level.audit
    errors = ", ".join(f"{kind} {count}" for kind, count in level.errors.items())
    return {
        "Variant": result.name,
        "Requested concurrency": level.key,
        "Achieved concurrency": _number(audit.get("achieved_concurrency")),
        "Client limited": _limited(level),
        "Errors": f"{level.invocation_errors}" + (f" ({errors})" if errors else ""),
        "Looping outputs": f"{level.looping_outputs} of {level.requests}",
        "Client CPU": _share(_headroom(audit)),
        "Loop lag p99 (ms)": _number(audit.get("loop_lag_ms_p99")),
        "Coalesced reads": _share(_number(audit.get("coalesced_share"))),
        "Warm-up errors": _number(audit.get("warmup_errors")),
        "Token times": ", ".join(TOKEN_TIMES.get(name, name) for name in audit.get("token_times") or ()),
        "Repeats kept": f"{len(level.blocks)} of {level.repeats}",
    }


def _limited(level: Level) -> str:
    if not level.client_limited:
        return "no"
    reasons = "; ".join(level.audit.get("reasons") or ())
    return f"yes: {reasons}" if reasons else "yes"


def _headroom(audit: dict[str, Any]) -> float | None:
    """The share of one core that the load generator took while the level ran."""
    cpu, wall = _number(audit.get("cpu_s")), _number(audit.get("wall_s"))
    return cpu / wall if cpu is not None and wall else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _share(value: float | None, decimals: int = 1) -> str | None:
    return None if value is None else f"{value:.{decimals}%}"


def _table(found: list[Row]) -> dict[str, Any]:
    names = list(found[0]) if found else []
    columns = [{"text": name, "number": all(_is_figure(row[name]) for row in found)} for name in names]
    variants = [None, *(row["Variant"] for row in found)]
    cells = [[_written(row[name]) for name in names] for row in found]
    starts = [before != row["Variant"] for before, row in zip(variants, found, strict=False)]
    return {"columns": columns, "rows": [{"starts": start, "cells": row} for start, row in zip(starts, cells, strict=True)]}


def _is_figure(value: Cell) -> bool:
    return not isinstance(value, str) or (value[:1].isdigit() and value.endswith("%"))


def _written(value: Cell) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return min(figure(value, 4), f"{value:,.15g}", key=len)
    return f"{value:,}" if isinstance(value, int) else value
