"""What a step of a recipe is called and does, in a line each. Pure: words only."""

from __future__ import annotations

from backend.domain.recipe.recipe import Recipe, Step

TITLES = {
    ("quantize", "w8a8"): "Quantize to 8 bits (w8a8)",
    ("quantize", "awq"): "Quantize to 4 bits (awq)",
    ("quantize", "gptq"): "Quantize to 4 bits (gptq)",
    ("quantize", "rtn"): "Quantize to 4 bits (rtn)",
    ("quantize", "smoothquant"): "Quantize to 8 bits (smoothquant)",
    ("quantize", "int8"): "Quantize weights to 8 bits (int8)",
    ("quantize", "fp8"): "Quantize to FP8 (fp8)",
    ("quantize", "kv_cache"): "FP8 key-value cache",
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
    ("quantize", "rtn"): "4-bit weights, each rounded to the nearest step: quick, and the mark that the others have to beat.",
    ("quantize", "awq"): "4-bit weights; input channels that matter are scaled up before rounding.",
    ("quantize", "gptq"): "4-bit weights; columns not yet rounded make up for the error of those that are.",
    ("quantize", "w8a8"): "8-bit integers for weights and activations.",
    ("quantize", "smoothquant"): "8-bit integers for weights and activations, with outliers moved into the weights first.",
    ("quantize", "int8"): "8-bit weights with 16-bit activations, for GPUs: close to the original at half the size.",
    ("quantize", "fp8"): "8-bit floating point for weights and activations: no outliers to fear, for newer GPUs.",
    ("quantize", "kv_cache"): "Leaves the weights alone and stores keys and values of the context in half the bytes.",
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
