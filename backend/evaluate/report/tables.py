"""The report's tables as titles, columns and written cells. No HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.evaluation import energy
from backend.domain.evaluation.document import Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.soundness import invalidity_reasons, level_validity
from backend.domain.figures import factor_and_bounds, figure, share, times
from backend.present.speculation import words as speculation
from backend.present.tables import tasks
from backend.present.tables.evaluation import (
    MORE_COLUMNS,
    MORE_PRICE_COLUMNS,
    PRICE_COLUMNS,
    THROUGHPUT_COLUMNS,
    Cell,
    Columns,
    Row,
    distribution_table,
    latency_columns,
    rows,
)
from backend.present.words import evidence, load_search
from backend.present.words.measurements import agreed_shares, cache_hits, measured_slices, scored
from backend.present.words.quality_loss import words
from backend.present.words.verdicts import describe_comparison, metric_title

TOKEN_TIMES = {"continuous": "server", "final": "spread", "none": "none"}
"""Sources of the time of each token."""
AGREED = {
    "Greedy match": "greedy match",
    "Answers with the same words": "exact match",
    "Token F1 of answers": "token F1",
}


def rows_by_table(evaluation: Evaluation) -> dict[str, list[Row]]:
    """Name -> rows with figures as figures."""
    return {
        "latency": rows(evaluation, latency_columns()),
        "throughput": rows(evaluation, {**THROUGHPUT_COLUMNS, **_more(evaluation)}),
        "price": rows(evaluation, {**PRICE_COLUMNS, **_more_prices(evaluation)}),
        "comparison": _comparison(evaluation),
        "distributions": distribution_table(evaluation),
        "quality": [_quality(result) for result in evaluation.variants],
        "tasks": tasks.rows(evaluation),
        "sweep": load_search.rows(evaluation),
        "energy": [*energy.energy_rows(evaluation)],
        "acceptance": [*speculation.rows(evaluation)],
        "lossless": [*speculation.lossless_rows(evaluation)],
        "proven": [*evidence.rows(evaluation)] if any(result.findings for result in evaluation.variants) else [],
        "validity": [_validity(result, level) for result in evaluation.variants for level in result.levels],
    }


def _more(evaluation: Evaluation) -> Columns:
    """Energy only where the machine reports it."""
    reported = any(level.energy for result in evaluation.variants for level in result.levels)
    return {name: read for name, read in MORE_COLUMNS.items() if reported or not name.startswith("Energy")}


def _more_prices(evaluation: Evaluation) -> dict[str, Any]:
    total, blended, sagemaker = MORE_PRICE_COLUMNS.items()
    ratio = f"{evaluation.options.input_output_ratio:g}:1"
    return dict([total, (f"{blended[0]}, {ratio}", blended[1]), (f"{sagemaker[0]}, {ratio}", sagemaker[1])])


def _comparison(evaluation: Evaluation) -> list[Row]:
    return [
        {
            "Variant": row.variant,
            "Concurrency": row.load.cell,
            "Metric": f"{metric_title(row.metric)} ({row.metric})",
            "Ratio to baseline": None if row.ratio is None else times(row.ratio),
            "95% interval": None if row.ci95 is None else factor_and_bounds(1.0, row.ci95)[1],
            "p, adjusted": None if row.p_value is None else f"{row.p_value:.2g}",
            "Verdict": describe_comparison(row),
        }
        for row in evaluation.comparison
    ]


def _quality(result: VariantResult) -> Row:
    # A variant that was not scored has empty cells.
    quality = result.quality or Quality(scored="unavailable")
    low, high = quality.kl_ci95 or (None, None)
    shares = agreed_shares(quality)
    return {
        "Variant": result.name,
        "Perplexity": quality.perplexity,
        "Perplexity of the original": quality.perplexity_original,
        "Mean KL (nats per token)": quality.kl_mean,
        "KL, 95% from": low,
        "KL, 95% to": high,
        "Median KL": quality.kl_median,
        "KL, 99th percentile": quality.kl_p99,
        "KL, 99.9th percentile": quality.kl_p999,
        "Same top token": _share(quality.same_top, 1),
        "As served: KL at least": quality.served_kl,
        "As served: same top token": _share(quality.served_same_top, 1),
        "Text": quality.text,
        "In words": words(quality),
        "Answers compared": quality.answers,
        **{title: share(*shares[name]) if name in shares else None for title, name in AGREED.items()},
        "First divergences / tokens": _share(quality.first_divergence_share, 2),
        "Scored on": scored(result),
    }


def _validity(result: VariantResult, level: Level) -> Row:
    audit = level.audit
    errors = ", ".join(f"{kind} {count}" for kind, count in level.errors.items())
    return {
        "Variant": result.name,
        "Requested concurrency": level.load.cell,
        "Valid": level_validity(level),
        "Why not": "; ".join(invalidity_reasons(level)),
        "Achieved concurrency": audit.achieved_concurrency,
        "Client headroom": _share(audit.headroom),
        "Errors": f"{level.invocation_errors}" + (f" ({errors})" if errors else ""),
        "Prefix-cache hits": cache_hits(level),
        "Looping outputs": f"{level.looping_outputs} of {level.requests}",
        "Loop lag p99 (ms)": audit.loop_lag_ms_p99,
        "Coalesced reads": _share(audit.coalesced_share),
        "Other programs (cores)": audit.others,
        "Warm-up errors": float(audit.warmup_errors),
        "Token times": ", ".join(TOKEN_TIMES[name] for name in audit.token_times),
        "Repeats": measured_slices(level),
    }


def _share(value: float | None, decimals: int = 1) -> str | None:
    return None if value is None else f"{value:.{decimals}%}"


def table_data(rows_shown: Sequence[Mapping[str, Cell]], first: str = "Variant") -> dict[str, Any]:
    """{columns, rows}: columns of {text, number}, rows of {starts, cells}; `starts` where the cell under `first` is a
    new one."""
    names = list(dict.fromkeys(name for row in rows_shown for name in row))
    columns = [{"text": name, "number": all(_is_figure(row.get(name)) for row in rows_shown)} for name in names]
    leads = [None, *(row.get(first) for row in rows_shown)]
    cells = [[write_cell(row.get(name)) for name in names] for row in rows_shown]
    starts = [before != row.get(first) for before, row in zip(leads, rows_shown, strict=False)]
    return {
        "columns": columns,
        "rows": [{"starts": start, "cells": row} for start, row in zip(starts, cells, strict=True)],
    }


def _is_figure(value: Cell) -> bool:
    return not isinstance(value, str) or (value[:1].isdigit() and value.endswith("%"))


def write_cell(value: Cell) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return min(figure(value, 4), f"{value:,.15g}", key=len)
    return f"{value:,}" if isinstance(value, int) else value
