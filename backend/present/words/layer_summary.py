"""What was done to a model's linears, in words: which layers suffer, what became zero, what stayed 16-bit and why.
Pure.

After the manifest's rows a linear (a library engine's are a decoder layer's). Knows nothing of charts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from backend.domain.figures import figure
from backend.domain.recipe.recipe import Quantize, Recipe

ALIKE = 1.15
"""Times the mean of all layers below which the worst layer does not stand out."""
NUMBERED = re.compile(r"\.(\d+)(?:\.|$)")

Rows = Sequence[Mapping[str, Any]]


def done(recipe: Recipe) -> str:
    """`pruned`, `quantized`, `pruned and quantized`; empty where weights stay as they are, as for a key-value cache
    alone."""
    step = recipe.step("quantize")
    verbs = ["pruned"] if recipe.step("prune") else []
    verbs += ["quantized"] if isinstance(step, Quantize) and step.method != "kv_cache" else []
    return " and ".join(verbs)


def sentences(recipe: Recipe, layers: Rows, kept: Rows) -> list[str]:
    """What the job page says under the chart of errors."""
    verbs = done(recipe)
    if not verbs:
        return [
            "No weight was changed: keys and values are rounded while serving, and what that costs is in the divergence above."
        ]
    return [
        *_suffering(layers),
        *_zeros(layers),
        *_kept(kept, "Kept in 16 bit" if "quantized" in verbs else "Not pruned"),
    ]


def _suffering(layers: Rows) -> list[str]:
    """Which layer loses most, against all, and the worst linear."""
    means = _by_layer(layers)
    if len(means) < 2:
        return []
    mean, worst = fmean(means.values()), max(means, key=lambda number: means[number])
    row = max(layers, key=lambda each: float(each["relative_error"]))
    most = f"The worst is {row['name']} with {_percent(row['relative_error'])}."
    if means[worst] < ALIKE * mean:
        return [f"All {len(means)} layers suffer about alike: a relative error of {_percent(mean)} on average. {most}"]
    own = _percent(means[worst])
    return [
        f"Layer {worst} suffers most: a relative error of {own} on average, against {_percent(mean)} over all layers. {most}"
    ]


def _by_layer(layers: Rows) -> dict[int, float]:
    """Mean relative error by the number of the decoder layer."""
    found: dict[int, list[float]] = {}
    for row in layers:
        numbered = NUMBERED.search(str(row.get("name", "")))
        if numbered:
            found.setdefault(int(numbered.group(1)), []).append(float(row["relative_error"]))
    return {number: fmean(errors) for number, errors in found.items()}


def _zeros(layers: Rows) -> list[str]:
    shares = [float(row["zeros"]) for row in layers if row.get("zeros") is not None]
    if not shares:
        return []
    least, most = min(shares), max(shares)
    range_ = "" if most - least < 0.005 else f" ({_percent(least)} to {_percent(most)})"
    return [
        f"{_percent(fmean(shares))} of each pruned linear's weights are zeros{range_}; they are stored and save no space."
    ]


def _kept(kept: Rows, how: str) -> list[str]:
    """By reason; of several linears with the same reason the first is named."""
    reasons: dict[str, list[str]] = {}
    for row in kept:
        reasons.setdefault(str(row["why"]), []).append(str(row["name"]))
    told = [f"{names[0]}{_others(len(names) - 1)} ({why})" for why, names in reasons.items()]
    return [f"{how}: {'; '.join(told)}."] if told else []


def _others(count: int) -> str:
    return f" and {count} {'other' if count == 1 else 'others'}" if count else ""


def _percent(share: float) -> str:
    return f"{figure(100 * float(share))} %"
