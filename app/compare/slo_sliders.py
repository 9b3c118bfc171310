"""The latency limits of the Compare page: two sliders of the planned load, and the best level of each variant within
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.compare import what_if_url
from app.load_bar import address
from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.figures import figure
from backend.domain.limits import slo
from backend.domain.limits.latency_limit import USUAL_PERCENTILE, Percentile, latency_percentile
from backend.domain.limits.slo import BestLevel, Slo
from backend.present.charts.theme import COLOURS, Figure, Theme

LIMITS = {
    "ttft": ("ttft_ms", "Time to first token"),
    "tpot": ("tpot_ms", "Inter-token latency (TPOT)"),
}
FIELDS = {"ttft": "max_ttft_ms", "tpot": "max_tpot_ms"}
"""Fields of the planned load."""
STEPS = 200


def slider_scale(highest: float) -> tuple[float, float]:
    """Return (top, step) of a slider that reaches `highest` ms in about 200 round steps."""
    step = 10.0 ** math.floor(math.log10(max(highest, 0.01) / STEPS * 10))
    step = step if highest / step <= STEPS else step * 5
    return math.ceil(highest / step) * step, step


def choose(documents: Sequence[Evaluation], places: Sequence[Any] | None = None) -> Slo:
    """Draw the sliders of the planned load's limits in these two places, by default side by side. Return the limits;
    fully to the right is no limit."""
    limits = address.current().limits
    unmeasured: dict[str, None] = {}
    for column, (name, (latency, label)) in zip(places or st.columns(2), LIMITS.items(), strict=True):
        highest = slo.highest_latency(documents, latency, limits.percentile)
        if highest is None:
            unmeasured[latency] = None
        else:
            _slider(column, name, f"{label}, {limits.percentile} (ms)", highest)
    return limits.model_copy(update=unmeasured)


def _slider(column: Any, name: str, label: str, highest: float) -> None:
    """Draw one slider. The limit may be above all that was measured."""
    # Begin with the limit of the load; the right end is for none and for a higher one.
    top, step = slider_scale(highest)
    limit: float | None = getattr(address.current(), FIELDS[name])
    key = what_if_url.field_key(f"compare_slo_{name}_{top:g}")
    column.slider(
        f"At most: {label}",
        0.0,
        top,
        top if limit is None else min(limit, top),
        step,
        format="%g",
        key=key,
        on_change=_take_limit,
        args=(name, key, top),
        help="All the way to the right is no limit. Limits and percentile are those of Your load.",
    )


def _take_limit(name: str, key: str, top: float) -> None:
    """Make the slider's value the limit of the planned load."""
    value = st.session_state[key]
    address.store(address.current().model_copy(update={FIELDS[name]: None if value >= top else float(value)}))
    what_if_url.remember(f"slo_{name}")


def rows(at_slos: Sequence[BestLevel], percentile: Percentile = USUAL_PERCENTILE) -> list[dict[str, str]]:
    """Return a row per variant, the fastest first; a variant that meets the limits at no measured level says so."""
    return [_row(level, percentile) for level in sorted(at_slos, key=_speed, reverse=True)]


def _speed(best: BestLevel) -> tuple[bool, tuple[bool, float, float]]:
    return best.level is not None, slo.throughput_order(best.level) if best.level else (False, 0.0, 0.0)


def _row(best: BestLevel, percentile: Percentile) -> dict[str, str]:
    level = best.level
    if level is None:
        return {"Variant": best.variant, "Best at": "no measured level meets these limits"}
    price = level.price.per_million_output if level.price else None
    no_price = "tokens not counted" if level.output_tokens_per_s is None else "no price given"
    return {
        "Variant": best.variant,
        "Best at": f"concurrency {level.load.cell}" if level.load.is_closed else level.load.words,
        "Output tokens/s": figure(level.output_tokens_per_s),
        f"TTFT {percentile} (ms)": figure(latency_percentile(level, "ttft_ms", percentile)),
        f"TPOT {percentile} (ms)": figure(latency_percentile(level, "tpot_ms", percentile)),
        "Price per million output tokens (USD)": figure(price) if price is not None else no_price,
    }


def _is_placed(level: Level) -> bool:
    """Tell whether the Pareto chart has a mark for the level."""
    return level.output_tokens_per_s is not None and level.output_tokens_per_s_per_request is not None


def with_rings(chart: Figure, at_slos: Sequence[BestLevel], theme: Theme) -> Figure:
    """Return the Pareto chart with a ring around the chosen level of each variant."""
    # Ring only levels that the chart shows.
    chosen = [best.level for best in at_slos if best.level and _is_placed(best.level)]
    if not chosen or not chart["data"]:
        return chart
    # Draw the rings as one series without hover text.
    colour = COLOURS[theme].ink
    ring: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "name": "best within the limits",
        "customdata": ["best within the limits"] * len(chosen),
        "x": [level.output_tokens_per_s for level in chosen],
        "y": [level.output_tokens_per_s_per_request for level in chosen],
        "marker": {"symbol": "circle-open", "size": 20, "color": colour, "line": {"color": colour, "width": 2}},
    }
    return {**chart, "data": [*chart["data"], ring]}
