"""Chart of the memory that a model needs on each kind of hardware, as shares of one accelerator. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.domain.planner.footprint import Footprint
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, style, text, upright

TITLE = "Memory of one accelerator"
ESTIMATED = "estimated from the model's shapes: docs/decisions/0010-planner.md"
WIDEST = 150.0
"""Percent at which a bar that does not fit is cut off; its label has the real value."""
PARTS = ("Weights", "Activations and runtime", "Free for the KV cache")
TOO_LARGE = "Does not fit"
BAR = 22
"""Pixels."""


def memory(footprints: Sequence[Footprint], theme: Theme = "light") -> Figure:
    """Chart one bar per kind of hardware, in order. Hover text has bytes, tokens and the instances."""
    if not footprints:
        return empty(TITLE, "There is no instance to compare with.", theme)
    fitting, too_large = [each for each in footprints if each.fits], [each for each in footprints if not each.fits]
    traces = [_trace(name, number, fitting, theme) for number, name in enumerate(PARTS)] if fitting else []
    traces += [_over(too_large, theme)] if too_large else []
    x = {"label": "Share of one accelerator's memory (%)", "range": [0, WIDEST], "dtick": 25}
    y = {
        "type": "category",
        "autorange": "reversed",
        "categoryorder": "array",
        "categoryarray": [label(each) for each in footprints],
    }
    full = upright(100, COLOURS[theme].muted)
    around = {**layout(TITLE, x, y, theme, provenance=ESTIMATED), "shapes": [full]}
    height = 170 + BAR * len(footprints)
    legend = {**around["legend"], "y": -70 / height, "traceorder": "normal"}
    return {
        "data": traces,
        "layout": {**around, "barmode": "stack", "bargap": 0.25, "height": height, "legend": legend},
    }


def label(each: Footprint) -> str:
    """`4 x A10G (g5)`: the accelerators, and the family of the instances that have them."""
    families = dict.fromkeys(name.removeprefix("ml.").partition(".")[0] for name in each.names)
    return f"{each.device.units} x {each.device.name} ({', '.join(families)})"


def parts(each: Footprint) -> tuple[float, float, float]:
    """Return percent of one accelerator's memory: weights, activations with the largest runtime, smallest cache."""
    share = 100 / each.device.memory_bytes
    room = each.memory
    return room.weights_per_device * share, (room.activations + room.runtime[1]) * share, max(0, room.cache[0]) * share


def _trace(name: str, number: int, footprints: Sequence[Footprint], theme: Theme) -> dict[str, Any]:
    mark_style = style(number + 1, theme)
    patterns = ("", "/", ".")
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [parts(each)[number] for each in footprints],
        "y": [label(each) for each in footprints],
        "hovertext": [_hover(each) for each in footprints],
        "hoverinfo": "text",
        "marker": {"color": mark_style.colour, "pattern": {"shape": patterns[number], "solidity": 0.2}},
    }


def _over(footprints: Sequence[Footprint], theme: Theme) -> dict[str, Any]:
    shares = [100 * each.used_bytes / each.device.memory_bytes for each in footprints]
    return {
        "type": "bar",
        "orientation": "h",
        "name": TOO_LARGE,
        "x": [min(share, WIDEST) for share in shares],
        "y": [label(each) for each in footprints],
        "hovertext": [_hover(each) for each in footprints],
        "hoverinfo": "text",
        "text": [f"needs {share:,.0f} %" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textfont": {"color": COLOURS[theme].ink},
        "marker": {"color": COLOURS[theme].grid, "line": {"color": COLOURS[theme].muted, "width": 1}},
    }


def _hover(each: Footprint) -> str:
    room, gb = each.memory, 1e9
    over = _over_which(each)
    least, most = room.tokens
    cache = f"{least:,} to {most:,} tokens in the cache" if each.fits else "no room for a cache"
    weights_text = (
        f"{room.weights_per_device / gb:,.3g} GB of weights of {each.device.memory_bytes / gb:,.3g} GB each, {over}"
    )
    return f"<b>{text(label(each))}</b><br>{weights_text}<br>{cache}<br>{text(', '.join(each.names))}<br>{ESTIMATED}"


def _over_which(each: Footprint) -> str:
    if each.device.units == 1:
        return "on one"
    cut = (
        f"split over {each.memory.tensor_parallel} of {each.device.units}"
        if each.memory.tensor_parallel > 1
        else "whole on each"
    )
    return f"{each.replicas} replicas, {cut}" if each.replicas > 1 else cut


def alt(footprints: Sequence[Footprint]) -> str:
    """Return the chart in words."""
    if not footprints:
        return f"{TITLE}: there is no instance to compare with."
    fits = [label(each) for each in footprints if each.fits]
    others = [label(each) for each in footprints if not each.fits]
    sentences = [f"{TITLE} on each kind of instance, estimated."]
    sentences += [f"It fits on {', '.join(fits)}."] if fits else ["It fits on none of them."]
    return " ".join([*sentences, f"It does not fit on {', '.join(others)}."] if others else sentences)


def rows(footprints: Sequence[Footprint]) -> list[dict[str, Any]]:
    """Return the chart as a table; GB are 10^9 bytes of one accelerator."""
    return [
        {
            "Hardware": label(each),
            "Fits": "yes" if each.fits else "no",
            "Accelerators used": each.replicas * each.memory.tensor_parallel,
            "Weights (GB)": round(each.memory.weights_per_device / 1e9, 2),
            "Activations and runtime (GB)": round((each.memory.activations + each.memory.runtime[1]) / 1e9, 2),
            "Memory (GB)": round(each.device.memory_bytes / 1e9, 1),
            "Tokens in the cache, at least": each.memory.tokens[0] if each.fits else 0,
            "Instances": ", ".join(each.names),
        }
        for each in footprints
    ]
