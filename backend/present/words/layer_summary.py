"""Sentences about a model's changed linears: which layers lose most, how many weights are zero, what stayed 16-bit.

They are made from the manifest's rows, one per linear (per decoder layer for library engines). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from backend.domain.figures import figure
from backend.domain.recipe.recipe import Prune, Quantize, Recipe

ALIKE = 1.15
"""A worst layer below this multiple of the mean of all layers is not named."""
NUMBERED = re.compile(r"\.(\d+)(?:\.|$)")

Rows = Sequence[Mapping[str, Any]]


def done(recipe: Recipe) -> str:
    """Return `pruned`, `quantized` or `pruned and quantized`; empty if no weight changes (KV cache alone).

    `narrowed` after a structured pruning of width alone; what is quantized after one is a model of its own.
    """
    step, prune = recipe.step("quantize"), recipe.step("prune")
    quantized = isinstance(step, Quantize) and step.method != "kv_cache"
    verbs = ["pruned"] if prune else []
    if isinstance(prune, Prune) and prune.structured:
        verbs = ["narrowed"] if prune.method == "width" and not quantized else []
    verbs += ["quantized"] if quantized else []
    return " and ".join(verbs)


def sentences(recipe: Recipe, layers: Rows, unchanged: Rows) -> list[str]:
    """Return the sentences under the job page's chart of errors."""
    verbs = done(recipe)
    if not verbs:
        return [
            "No weight was changed: keys and values are rounded while serving. The divergence above shows the cost."
        ]
    return [
        *_worst_layer(layers),
        *_zeros(layers),
        *_unchanged_linears(unchanged, "Left in 16 bits" if "quantized" in verbs else "Not pruned"),
    ]


def _worst_layer(layers: Rows) -> list[str]:
    """Return which layer and which linear lose most, against the mean of all layers."""
    means = _by_layer(layers)
    if len(means) < 2:
        return []
    mean, worst = fmean(means.values()), max(means, key=lambda number: means[number])
    row = max(layers, key=lambda row: float(row["relative_error"]))
    most = f"The worst is {row['name']} with {_percent(row['relative_error'])}."
    if means[worst] < ALIKE * mean:
        return [f"All {len(means)} layers lose about the same: a relative error of {_percent(mean)} on average. {most}"]
    error = f"{_percent(means[worst])} on average, against {_percent(mean)} over all layers"
    return [f"Layer {worst} loses most: a relative error of {error}. {most}"]


def _by_layer(layers: Rows) -> dict[int, float]:
    """Return the mean relative error of each decoder layer by its number."""
    by_layer: dict[int, list[float]] = {}
    for row in layers:
        numbered = NUMBERED.search(str(row.get("name", "")))
        if numbered:
            by_layer.setdefault(int(numbered.group(1)), []).append(float(row["relative_error"]))
    return {number: fmean(errors) for number, errors in by_layer.items()}


def _zeros(layers: Rows) -> list[str]:
    shares = [float(row["zeros"]) for row in layers if row.get("zeros") is not None]
    if not shares:
        return []
    least, most = min(shares), max(shares)
    range_ = "" if most - least < 0.005 else f" ({_percent(least)} to {_percent(most)})"
    mean = _percent(fmean(shares))
    return [f"{mean} of each pruned linear's weights are zeros{range_}; zeros are stored and save no space."]


def _unchanged_linears(unchanged: Rows, heading: str) -> list[str]:
    """Return one sentence by reason; it names the first of several linears with the same reason."""
    reasons: dict[str, list[str]] = {}
    for row in unchanged:
        reasons.setdefault(str(row["why"]), []).append(str(row["name"]))
    groups = [f"{names[0]}{_others(len(names) - 1)} ({why})" for why, names in reasons.items()]
    return [f"{heading}: {'; '.join(groups)}."] if groups else []


def _others(count: int) -> str:
    return f" and {count} {'other' if count == 1 else 'others'}" if count else ""


def _percent(share: float) -> str:
    return f"{figure(100 * float(share))} %"
