"""What a step of a recipe is called and does, in a line each. Pure: words only."""

from __future__ import annotations

from backend.domain.recipe.methods import QUANTIZE
from backend.domain.recipe.recipe import Recipe, Step

TITLES: dict[tuple[str, str | None], str] = {
    **{("quantize", name): method.action for name, method in QUANTIZE.items()},
    ("prune", "magnitude"): "Prune by magnitude",
    ("prune", "wanda"): "Prune by Wanda",
    ("prune", "sparsegpt"): "Prune by SparseGPT",
    ("speculate", "draft"): "Speculate with a draft model",
    ("speculate", "ngram"): "Speculate with n-grams",
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
    ("prune", "magnitude"): "Sets the smallest weights to zero. No server here skips zeros, so neither size nor speed gains.",
    ("prune", "wanda"): "Sets weights to zero that are small and see small inputs. Neither size nor speed gains here.",
    ("prune", "sparsegpt"): "Sets weights to zero and corrects the others for it. Neither size nor speed gains here.",
}
"""In place of the technique's where a method has one."""


def title(step: Step) -> str:
    """A step's name on its card and its button."""
    method = getattr(step, "method", None)
    known = TITLES.get((step.technique, method))
    return known or " ".join(part for part in (step.technique.capitalize(), f"({method})" if method else "") if part)


def explained(step: Step) -> str:
    """What the step does, in one line."""
    return METHOD_HELPS.get((step.technique, getattr(step, "method", None) or ""), HELPS[step.technique])


def stack(recipe: Recipe) -> str:
    """The steps in one line: `quantize w8a8 + compile`."""
    steps = [" ".join(filter(None, (step.technique, getattr(step, "method", None)))) for step in recipe.steps]
    return " + ".join(steps) or "no steps, the original"
