"""Charts of an evaluation: pure data for plotly, without plotly. The app and the report draw the same figures.

The hover text of every mark says where, when and with what it was measured. Whiskers are 95% intervals on every chart,
here of the figure over the repeats of a level. `alt_text.alt` describes each chart in words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.prices import Pricing, level_prices
from backend.domain.figures import figure, finite
from backend.present.charts.markers import (
    flags,
    folded,
    has_whiskers,
    legend_name,
    levels,
    marker,
    note,
    places,
    point_title,
    provenance,
    slice_figures,
    slice_whiskers,
    uncounted_variants,
    whisker_key,
)
from backend.present.charts.theme import (
    Figure,
    Marks,
    Theme,
    concurrency_axis,
    curve,
    empty,
    layout,
    style,
    text,
)
from backend.present.tables.evaluation import part

PERCENTILES = ("p50", "p90", "p95", "p99")
LATENCIES = {
    "ttft_ms": "Time to first token",
    "tpot_ms": "Inter-token latency",
    "chunk_gap_ms": "Time between chunks",
    "client_latency_ms": "Client latency",
}
THROUGHPUTS = {
    "output_tokens_per_s": "Output tokens/s, all streams",
    "output_tokens_per_s_per_request": "Output tokens/s per request",
    "input_tokens_per_s": "Input tokens/s, all streams",
}
PRICES = {
    "per_million_input": "Price per million input tokens",
    "per_million_output": "Price per million output tokens",
    "per_million_total": "Price per million tokens, input and output",
    "blended": "Blended price per million tokens",
    "blended_sagemaker": "Blended price, SageMaker-compatible",
}
PRICED = "USD"
NO_PRICE = "No price was given: set a price per hour."


class _Line(NamedTuple):
    """One line chart: its title and unit, the value of a level, and the figures of slices that its whiskers span."""

    title: str
    unit: str
    value: Callable[[Level], float | None]
    slices: Callable[[Level], list[float]]

    @property
    def heading(self) -> str:
        """Return the title, with its unit if the title does not name it."""
        return f"{self.title} ({self.unit})" if self.unit in {"ms", PRICED} else self.title

    @property
    def axis(self) -> str:
        return "Price (USD)" if self.unit == PRICED else self.heading

    @property
    def better(self) -> str:
        """Return which direction is better: `higher` or `lower`."""
        return "higher" if self.unit == "tokens/s" else "lower"


def latency(evaluation: Evaluation, metric: str = "ttft_ms", percentile: str = "p50", theme: Theme = "light") -> Figure:
    """Chart a latency in ms against concurrency. `metric`: one of LATENCIES; `percentile`: one of PERCENTILES."""
    slices = partial(slice_figures, f"{metric}_{percentile}")
    line = _Line(f"{LATENCIES[metric]}, {percentile}", "ms", part(metric, percentile), slices)
    return _line_chart(evaluation, line, theme, "No request gave this latency.")


def throughput(evaluation: Evaluation, metric: str = "output_tokens_per_s", theme: Theme = "light") -> Figure:
    """Chart tokens per second against concurrency. `metric`: one of THROUGHPUTS."""
    line = _Line(THROUGHPUTS[metric], "tokens/s", lambda level: getattr(level, metric), partial(slice_figures, metric))
    return _line_chart(evaluation, line, theme, "No throughput was measured.")


def price(evaluation: Evaluation, metric: str = "per_million_output", theme: Theme = "light") -> Figure:
    """Chart a price against concurrency, in USD. `metric`: one of PRICES."""
    missing = "This price could not be computed." if evaluation.has_price else NO_PRICE
    slices = partial(_slice_prices, metric, evaluation.options.input_output_ratio)
    return _line_chart(evaluation, _Line(PRICES[metric], PRICED, part("price", metric), slices), theme, missing)


def _slice_prices(metric: str, ratio: float, level: Level) -> list[float]:
    """Return a price of each slice at one unit of money an hour: a price of the hour changes no factor."""
    prices = []
    for block in level.blocks:
        price = level_prices(
            Pricing(per_hour=1.0, input_output_ratio=ratio),
            concurrency=level.concurrency,
            input_tokens_per_s=block.get("input_tokens_per_s"),
            output_tokens_per_s=block.get("output_tokens_per_s"),
            tpot_p50_ms=block.get("tpot_ms_p50"),
            prefill_share=level.audit.prefill_share,
        )
        prices.append(getattr(price, metric))
    return [price for price in prices if price is not None]


def _line_chart(evaluation: Evaluation, line: _Line, theme: Theme, missing: str) -> Figure:
    traces = [_trace(evaluation, index, line, theme) for index in range(len(evaluation.variants))]
    drawn = [trace for trace in traces if trace["y"]]
    priced = line.unit != PRICED or evaluation.has_price
    silent = uncounted_variants(evaluation, line.value) if priced else []
    if not drawn:
        return empty(line.heading, f"{silent[0]}." if silent else missing, theme)
    y = {"label": line.axis, "rangemode": "tozero"}
    meta = {"better": line.better, "interval": ["95% from", "95% to"], "provenance": provenance(evaluation)}
    around = layout(line.heading, concurrency_axis(levels(evaluation)), y, theme, **meta)
    key = [whisker_key(theme)] if has_whiskers(drawn) else []
    return {"data": [*drawn, *key], "layout": {**around, "annotations": [note(words, theme) for words in silent]}}


def _trace(evaluation: Evaluation, index: int, line: _Line, theme: Theme) -> dict[str, Any]:
    # Levels without a figure have no mark.
    result = evaluation.variants[index]
    points = [(level, value) for level in result.levels if (value := finite(line.value(level))) is not None]
    place = places(evaluation)[result.name]
    where = provenance(evaluation)
    hover_texts = [
        f"{point_title(result, level)}<br>{folded(f'{line.title}: {figure(value)} {line.unit}')}"
        f"{flags(level)}<br>{where}"
        for level, value in points
    ]
    # Draw the line with its intervals, hollow marks for invalid levels.
    x, y = [level.concurrency for level, _ in points], [value for _, value in points]
    return {
        **curve(text(result.name), place, theme, Marks(x, y, hover_texts)),
        "name": legend_name(result.name),
        "marker": marker(place, theme, [level for level, _ in points]),
        "error_y": slice_whiskers(y, [line.slices(level) for level, _ in points], style(place, theme).colour),
    }
