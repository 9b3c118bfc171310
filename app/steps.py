"""What a step of a recipe is called and does, in a line each. Pure: words only."""

from __future__ import annotations

import re

from backend.domain.recipe import methods
from backend.domain.recipe.methods import QUANTIZE
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Step
from backend.domain.recipe.speculation import SPECULATE

UNNAMED = "my recipe"
"""What a recipe is called before it has steps."""
TITLES: dict[tuple[str, str | None], str] = {
    **{("quantize", name): method.action for name, method in QUANTIZE.items()},
    ("prune", "magnitude"): "Prune by magnitude",
    ("prune", "wanda"): "Prune by Wanda",
    ("prune", "sparsegpt"): "Prune by SparseGPT",
    **{("speculate", str(name)): f"Speculate with {row.title}" for name, row in SPECULATE.items()},
    ("compile", None): "Compile ahead of time",
}
HELPS = {
    "prune": "Sets weights to zero and keeps the rest.",
    "quantize": "Stores the weights, and for w8a8 the activations, as integers.",
    "speculate": "Proposes several tokens at once, which the model then checks.",
    "compile": "Compiles before the server starts, so that it starts sooner.",
    "shard": "Writes the weights one file a device, so that they load sooner.",
}
METHOD_HELPS = {
    **{("quantize", name): method.help for name, method in QUANTIZE.items()},
    (
        "prune",
        "magnitude",
    ): "Sets the smallest weights to zero. No server here skips zeros, so neither size nor speed gains.",
    ("prune", "wanda"): "Sets weights to zero that are small and see small inputs. Neither size nor speed gains here.",
    ("prune", "sparsegpt"): "Sets weights to zero and corrects the others for it. Neither size nor speed gains here.",
    **{("speculate", str(name)): f"{row.help} The model checks every guess." for name, row in SPECULATE.items()},
}
"""In place of the technique's where a method has one."""


def step_title(step: Step) -> str:
    """A step's name on its card and its button."""
    method = getattr(step, "method", None)
    known = TITLES.get((step.technique, method))
    return known or " ".join(part for part in (step.technique.capitalize(), f"({method})" if method else "") if part)


def step_help(step: Step) -> str:
    """What the step does, in one line."""
    return METHOD_HELPS.get((step.technique, getattr(step, "method", None) or ""), HELPS[step.technique])


SHORT = {
    "smoothquant": "SmoothQuant",
    "kv_cache": "FP8 cache",
    "sparsegpt": "SparseGPT",
    "ngram": "n-gram",
    "ngram_adaptive": "adaptive n-gram",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "medusa": "Medusa",
    "dflash": "DFlash",
    "custom": "own proposer",
}
"""Methods that are not written in capitals, in a recipe's name."""
_NUMBER = re.compile(r" \d+$")


def recipe_name(recipe: Recipe) -> str:
    """What a recipe is called by its steps: `AWQ 4-bit + draft`."""
    return " + ".join(_step_name(step) for step in recipe.steps) or UNNAMED


def _step_name(step: Step) -> str:
    method = str(getattr(step, "method", ""))
    called = SHORT.get(method) or (method.capitalize() if step.technique == "prune" else method.upper())
    if isinstance(step, Quantize):
        bits = (
            f"{step.target_bits:g}"
            if step.target_bits
            else "4"
            if 4 in (step.bits, methods.method_row(step).bits[0])
            else ""
        )
        return f"{called} {bits}-bit" if bits and step.bits != 8 else called
    if isinstance(step, Prune):
        return (
            f"{called} {f'{step.sparsity:.0%}'.replace('%', ' %') if step.pattern == 'unstructured' else step.pattern}"
        )
    return {"compile": "compiled", "speculate": SHORT.get(method, method)}.get(step.technique, step.technique)


def has_default_name(recipe: Recipe) -> bool:
    """Whether its name only says its steps, so that it changes with them."""
    return _NUMBER.sub("", recipe.name) in {UNNAMED, recipe_name(recipe)}


GROUPS = {
    4: "4-bit weights: smallest, and quickest where weights are read from memory",
    8: "8 bits: closer to the original",
    16: "Key-value cache: longer contexts, more streams",
    "prune": "Pruning: zeros in the weights",
    "speculate": "Speculation: several tokens a step",
    "compile": "Starting sooner",
}


def menu_group(step: Step) -> str:
    """Under which heading of the menu a step stands."""
    return GROUPS[methods.method_row(step).bits[0] if isinstance(step, Quantize) else step.technique]


def steps_line(recipe: Recipe) -> str:
    """The steps in one line: `quantize w8a8 + compile`."""
    steps = [" ".join(filter(None, (step.technique, getattr(step, "method", None)))) for step in recipe.steps]
    return " + ".join(steps) or "no steps, the original"
