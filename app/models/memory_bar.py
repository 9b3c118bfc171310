"""Draw the memory of one device while serving as a bar of weights, cache, activations and runtime. Pure: HTML out.

Each part differs by position, pattern and label, not by colour only.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from app.formatting import size
from backend.domain.planner.estimate import Estimate
from backend.present.charts.theme import COLOURS, Theme

LEAST_SHARE = 0.03
"""Below this share of weights, cache and activations the bar says nothing about the model and is left out."""


class Part(NamedTuple):
    name: str
    bytes: int
    series: int
    """Number of its colour in the chart palette; -1 for free memory."""
    stripes: int
    """Degrees of its pattern; -1 for none."""


def parts(estimate: Estimate) -> list[Part]:
    """Return the parts of one device at the least cache; their sum is its memory. Empty if its size is unknown."""
    weights, caches, activations = estimate.weights_per_device, estimate.cache_bytes, estimate.activation_bytes
    runtimes, device = estimate.runtime_bytes, estimate.device_bytes
    if weights is None or caches is None or activations is None or runtimes is None or device is None:
        return []
    runtime, cache = runtimes[1], max(0, caches[0])
    free = device - weights - cache - activations - runtime
    return [
        Part("weights", weights, 1, -1),
        Part("cache", cache, 3, 45),
        Part("activations", activations, 5, 135),
        Part("runtime", runtime, 4, 90),
        Part("not used", max(0, free), -1, -1),
    ]


def html(estimate: Estimate, theme: Theme) -> str | None:
    """Return the bar with its legend; None if there is nothing to see."""
    shown = parts(estimate)
    if not shown or sum(part.bytes for part in shown[:-2]) < LEAST_SHARE * (estimate.device_bytes or 1):
        return None
    bars = "".join(f'<div style="flex:{part.bytes} 0 3px;{_fill(part, theme)}"></div>' for part in shown if part.bytes)
    legend = "".join(_legend(part, theme) for part in shown)
    return (
        f'<div role="img" aria-label="{escape(description(estimate))}">'
        f'<div style="display:flex;height:22px;gap:2px;border-radius:4px;overflow:hidden">{bars}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:2px 14px;margin-top:6px;font-size:0.85rem">{legend}</div></div>'
    )


def description(estimate: Estimate) -> str:
    """Return the bar in words."""
    title = (
        f"Estimated memory of one of {estimate.devices} devices" if (estimate.devices or 1) > 1 else "Estimated memory"
    )
    listed = ", ".join(f"{part.name} {size(part.bytes)}" for part in parts(estimate))
    return f"{title}, {size(estimate.device_bytes)}: {listed}."


def _fill(part: Part, theme: Theme) -> str:
    colours = COLOURS[theme]
    if part.series < 0:
        return f"background:{colours.grid}"
    colour = colours.series[part.series]
    if part.stripes < 0:
        return f"background:{colour}"
    return f"background:repeating-linear-gradient({part.stripes}deg,{colour} 0 5px,{colours.panel} 5px 7px)"


def _legend(part: Part, theme: Theme) -> str:
    style = f"display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:5px;{_fill(part, theme)}"
    mark = f'<span style="{style}"></span>'
    return f'<span style="white-space:nowrap">{mark}{escape(part.name)} {size(part.bytes)}</span>'
