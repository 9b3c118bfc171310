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
    # One stacked bar for each kind of hardware; what does not fit has one pale bar.
    fitting = [footprint for footprint in footprints if footprint.fits]
    too_large = [footprint for footprint in footprints if not footprint.fits]
    traces = [_trace(name, number, fitting, theme) for number, name in enumerate(PARTS)] if fitting else []
    traces += [_over(too_large, theme)] if too_large else []
    # A line at 100% is the end of the memory.
    x = {"label": "Share of one accelerator's memory (%)", "range": [0, WIDEST], "dtick": 25}
    y = {
        "type": "category",
        "autorange": "reversed",
        "categoryorder": "array",
        "categoryarray": [label(footprint) for footprint in footprints],
    }
    full = upright(100, COLOURS[theme].muted)
    around = {**layout(TITLE, x, y, theme, provenance=ESTIMATED), "shapes": [full]}
    # Each bar adds to the height.
    height = 170 + BAR * len(footprints)
    legend = {**around["legend"], "traceorder": "normal"}
    return {
        "data": traces,
        "layout": {**around, "barmode": "stack", "bargap": 0.25, "height": height, "legend": legend},
    }


def label(footprint: Footprint) -> str:
    """`4 x A10G (g5)`: the accelerators, and the family of the instances that have them."""
    families = dict.fromkeys(name.removeprefix("ml.").partition(".")[0] for name in footprint.names)
    return f"{footprint.device.units} x {footprint.device.name} ({', '.join(families)})"


def parts(footprint: Footprint) -> tuple[float, float, float]:
    """Return percent of one accelerator's memory: weights, activations with the largest runtime, smallest cache."""
    share = 100 / footprint.device.memory_bytes
    room = footprint.memory
    return room.weights_per_device * share, (room.activations + room.runtime[1]) * share, max(0, room.cache[0]) * share


def _trace(name: str, number: int, footprints: Sequence[Footprint], theme: Theme) -> dict[str, Any]:
    mark_style = style(number + 1, theme)
    patterns = ("", "/", ".")
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [parts(footprint)[number] for footprint in footprints],
        "y": [label(footprint) for footprint in footprints],
        "hovertext": [_hover(footprint) for footprint in footprints],
        "hoverinfo": "text",
        "marker": {"color": mark_style.colour, "pattern": {"shape": patterns[number], "solidity": 0.2}},
    }


def _over(footprints: Sequence[Footprint], theme: Theme) -> dict[str, Any]:
    shares = [100 * footprint.used_bytes / footprint.device.memory_bytes for footprint in footprints]
    return {
        "type": "bar",
        "orientation": "h",
        "name": TOO_LARGE,
        "x": [min(share, WIDEST) for share in shares],
        "y": [label(footprint) for footprint in footprints],
        "hovertext": [_hover(footprint) for footprint in footprints],
        "hoverinfo": "text",
        "text": [f"needs {share:,.0f} %" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textfont": {"color": COLOURS[theme].ink},
        "marker": {"color": COLOURS[theme].grid, "line": {"color": COLOURS[theme].muted, "width": 1}},
    }


def _hover(footprint: Footprint) -> str:
    room, gb = footprint.memory, 1e9
    over = _over_which(footprint)
    least, most = room.tokens
    cache = f"{least:,} to {most:,} tokens in the cache" if footprint.fits else "no room for a cache"
    weights = f"{room.weights_per_device / gb:,.3g} GB of weights of {footprint.device.memory_bytes / gb:,.3g} GB each"
    instances = text(", ".join(footprint.names))
    return f"<b>{text(label(footprint))}</b><br>{weights}, {over}<br>{cache}<br>{instances}<br>{ESTIMATED}"


def _over_which(footprint: Footprint) -> str:
    if footprint.device.units == 1:
        return "on one"
    cut = (
        f"split over {footprint.memory.tensor_parallel} of {footprint.device.units}"
        if footprint.memory.tensor_parallel > 1
        else "whole on each"
    )
    return f"{footprint.replicas} replicas, {cut}" if footprint.replicas > 1 else cut


def alt(footprints: Sequence[Footprint]) -> str:
    """Return the chart in words."""
    if not footprints:
        return f"{TITLE}: there is no instance to compare with."
    fits = [label(footprint) for footprint in footprints if footprint.fits]
    others = [label(footprint) for footprint in footprints if not footprint.fits]
    sentences = [f"{TITLE} on each kind of instance, estimated."]
    sentences += [f"It fits on {', '.join(fits)}."] if fits else ["It fits on none of them."]
    return " ".join([*sentences, f"It does not fit on {', '.join(others)}."] if others else sentences)


def rows(footprints: Sequence[Footprint]) -> list[dict[str, Any]]:
    """Return the chart as a table; GB are 10^9 bytes of one accelerator."""
    return [
        {
            "Hardware": label(footprint),
            "Fits": "yes" if footprint.fits else "no",
            "Accelerators used": footprint.replicas * footprint.memory.tensor_parallel,
            "Weights (GB)": round(footprint.memory.weights_per_device / 1e9, 2),
            "Activations and runtime (GB)": round(
                (footprint.memory.activations + footprint.memory.runtime[1]) / 1e9, 2
            ),
            "Memory (GB)": round(footprint.device.memory_bytes / 1e9, 1),
            "Tokens in the cache, at least": footprint.memory.tokens[0] if footprint.fits else 0,
            "Instances": ", ".join(footprint.names),
        }
        for footprint in footprints
    ]
