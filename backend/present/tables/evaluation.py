"""An evaluation as tables, with the column names of the SageMaker toolkit's documentation page, and as CSV.

Latencies are medians over requests unless another percentile is chosen. How tables are drawn is decided elsewhere.
"""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from backend.domain.evaluation.document import Evaluation, Level, Summary, VariantResult
from backend.domain.evaluation.energy import joules_per_token
from backend.present.tables import tasks as task_table

Cell = str | int | float | None
Row = dict[str, Cell]
Columns = dict[str, Callable[[Level], Cell]]


def part(field: str, name: str) -> Callable[[Any], Any]:
    """Return a function that reads `name` of an owner's `field`; None if the owner has none."""

    def read(owner: Any) -> Any:
        value = getattr(owner, field)
        return getattr(value, name) if value else None

    return read


def latency_columns(percentile: str = "p50") -> Columns:
    """Return the columns of the page's Latency section; `percentile` is a field of Summary."""
    return {
        "Time to first token (ms)": part("ttft_ms", percentile),
        "Inter-token latency (ms)": part("tpot_ms", percentile),
        "Client latency (ms)": part("client_latency_ms", percentile),
        "Input tokens/sec (count)": lambda level: level.input_tokens_per_s,
        "Output tokens/sec (count)": lambda level: level.output_tokens_per_s,
        "Client invocations (count)": lambda level: level.invocations,
        "Client invocation errors (count)": lambda level: level.invocation_errors,
        "Tokenizer failed (count)": lambda level: level.tokenizer_failed,
        "Empty inference response (count)": lambda level: level.empty_responses,
    }


THROUGHPUT_COLUMNS: Columns = {
    "Input tokens/sec/req (count)": lambda level: level.input_tokens_per_s_per_request,
    "Output tokens/sec/req (count)": lambda level: level.output_tokens_per_s_per_request,
    "Input tokens (count)": lambda level: level.input_tokens,
    "Output tokens (count)": lambda level: level.output_tokens,
}
PRICE_COLUMNS: Columns = {
    "Price per million input tokens (USD)": part("price", "per_million_input"),
    "Price per million output tokens (USD)": part("price", "per_million_output"),
}
"""With the two above: every metric of the page. The following columns are our own."""
MORE_PRICE_COLUMNS: Columns = {
    "Price per million tokens, total (USD)": part("price", "per_million_total"),
    "Blended price (USD)": part("price", "blended"),
    "Blended price, SageMaker-compatible (USD)": part("price", "blended_sagemaker"),
}
MORE_COLUMNS: Columns = {
    "Steady output tokens/sec": lambda level: level.steady_output_tokens_per_s,
    "Tokens per chunk": lambda level: level.tokens_per_chunk,
    "Acceptance rate": lambda level: level.acceptance_rate,
    "Prefix-cache hit rate": lambda level: level.prefix_cache_hit_rate,
    "Prefix-cache hit rate, at most by the workload": lambda level: level.prefix_cache_expected,
    "Energy per output token (J)": joules_per_token,
    "Requests/s": lambda level: level.requests_per_s,
    "Looping outputs (count)": lambda level: level.looping_outputs,
    "Client limited": lambda level: "yes" if level.client_limited else "no",
    "Repeats": lambda level: level.repeats,
    "Requests": lambda level: level.requests,
    "Duration (s)": lambda level: level.duration_s,
}
DISTRIBUTIONS = {
    "Time to first token": "ttft_ms",
    "Inter-token latency": "tpot_ms",
    "Client latency": "client_latency_ms",
    "Content latency": "content_latency_ms",
    "Chunk gap": "chunk_gap_ms",
}


def rows(evaluation: Evaluation, columns: Columns) -> list[Row]:
    """Return one row per variant and level; `Variant` and `Concurrency` come first."""
    return [
        {
            "Variant": result.name,
            "Concurrency": level.load.cell,
            **{name: read(level) for name, read in columns.items()},
        }
        for result, level in _measured(evaluation)
    ]


def table(evaluation: Evaluation, percentile: str = "p50") -> list[Row]:
    """Return every metric of the documentation page under its own name, one row per variant and level."""
    return rows(evaluation, {**latency_columns(percentile), **THROUGHPUT_COLUMNS, **PRICE_COLUMNS})


def distribution_table(evaluation: Evaluation) -> list[Row]:
    """Return mean and percentiles of every latency in ms, one row per variant, level and latency that has figures."""
    return [
        {
            "Variant": result.name,
            "Concurrency": level.load.cell,
            "Latency (ms)": title,
            **_statistics(getattr(level, metric)),
        }
        for result, level in _measured(evaluation)
        for title, metric in DISTRIBUTIONS.items()
        if getattr(level, metric) is not None
    ]


def _statistics(summary: Summary) -> Row:
    low, high = summary.ci95 or (None, None)
    cells: Row = {name: getattr(summary, name) for name in ("mean", "p50", "p90", "p95", "p99")}
    return {**cells, "mean, 95% from": low, "mean, 95% to": high}


def _measured(evaluation: Evaluation) -> Iterable[tuple[VariantResult, Level]]:
    return ((result, level) for result in evaluation.variants for level in result.levels)


def csv(evaluation: Evaluation) -> str:
    """Return one row per variant and level: the page's metrics, every percentile, our own. Empty if not measured."""
    # The columns: those of the page, then all percentiles.
    tails = {
        f"{title} {name} (ms)": part(metric, name)
        for title, metric in DISTRIBUTIONS.items()
        for name in ("mean", "p50", "p90", "p95", "p99")
    }
    columns = {
        **latency_columns(),
        **THROUGHPUT_COLUMNS,
        **PRICE_COLUMNS,
        **MORE_PRICE_COLUMNS,
        **MORE_COLUMNS,
        **tails,
    }
    # The rows: each level with the cells of its variant.
    tasks = [*task_table.cells(evaluation, evaluation.variants[0])] if evaluation.variants else []
    lines = [{**row, **own} for row, own in zip(rows(evaluation, columns), _variant_cells(evaluation), strict=True)]
    return sheet(["Variant", "Concurrency", *columns, *VARIANT_COLUMNS, *tasks], lines)


def _variant_cells(evaluation: Evaluation) -> list[Row]:
    """Return the cells of each level's variant, in the order of `rows`."""
    return [
        {**{name: read(result) for name, read in VARIANT_COLUMNS.items()}, **task_table.cells(evaluation, result)}
        for result, _ in _measured(evaluation)
    ]


VARIANT_COLUMNS: dict[str, Callable[[VariantResult], Cell]] = {
    "Perplexity": part("quality", "perplexity"),
    "Perplexity of the original": part("quality", "perplexity_original"),
    "Mean KL (nats per token)": part("quality", "kl_mean"),
    "Median KL": part("quality", "kl_median"),
    "KL, 99th percentile": part("quality", "kl_p99"),
    "KL, 99.9th percentile": part("quality", "kl_p999"),
    "Same top token": part("quality", "same_top"),
    "As served: KL at least": part("quality", "served_kl"),
    "As served: same top token": part("quality", "served_same_top"),
    "Scored on the text": part("quality", "text"),
    "Greedy match": part("quality", "greedy_match"),
    "Answers with the same words": part("quality", "exact_match"),
    "Token F1 of answers": part("quality", "token_f1"),
    "Answers compared": part("quality", "answers"),
    "Ready after (s)": lambda result: result.ready_seconds,
    "Ready after compiling (s)": lambda result: min(
        (start.ready_s for start in result.timed_starts if start.kind == "cold"), default=None
    ),
    "Peak memory (bytes)": lambda result: result.peak_rss_bytes,
}
"""Columns with the same cell for every level of a variant."""


def sheet(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Write CSV (RFC 4180) with the columns `names` under a header. No cell is a formula to a spreadsheet."""
    out = io.StringIO(newline="")
    writer = csv_format.writer(out)
    writer.writerow([_inert(name) for name in names])
    writer.writerows([_inert(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _inert(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would run as a formula (OWASP, CSV injection)."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
