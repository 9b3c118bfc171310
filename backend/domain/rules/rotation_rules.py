"""The rule on a rotation before quantization, and what mends a recipe that it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.figures import figure
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import rotation, serving_memory
from backend.domain.recipe.quantize_step import option_value, rotates
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.rules.target_facts import Reason, TargetFacts

WORSE = {"fp8": (0.034, 0.083), "nvfp4": (0.476, 1.591), "mxfp4": (1.346, 2.044)}
"""Method -> mean KL of SmolLM2-135M-Instruct on chat at the method's defaults, without and with a rotation
(benchmarks/results/methods.md, 2026-11-28)."""


def check_rotation(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a rotation that the model does not take, or that another step or the target does not go with."""
    if not rotates(recipe):
        return
    message = rotation.find_problem(model) or _conflict(recipe, facts)
    if message is not None:
        yield Reason(rule="rotation", message=message, source=rotation.SOURCE)


def _conflict(recipe: Recipe, facts: TargetFacts) -> str | None:
    quantize, speculate = recipe.step("quantize"), recipe.step("speculate")
    assert isinstance(quantize, Quantize)
    if facts.place == "managed":
        return "The SageMaker toolkit rotates nothing: leave `rotate` out."
    prune = recipe.step("prune")
    if isinstance(prune, Prune) and not prune.structured:
        return "A rotation would fill the zeros of the pruning: leave `rotate` or the prune step out."
    if quantize.recover is not None:
        return "`recover` trains weights beside the original's, which are not rotated: leave it or `rotate` out."
    if quantize.target_bits is not None or recipe.limits.fall_back:
        return "`rotate` goes with one precision for all linears: leave it, or `target_bits` and `fall_back`, out."
    if isinstance(speculate, Speculate) and SPECULATE[speculate.method].needs == "head":
        return "The draft's head reads the hidden state as it was before a rotation: leave `rotate` or it out."
    return None


def mend(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Recipe:
    """Return the recipe without its rotation where the rule refuses that. `model` is the one that is rotated."""
    if next(check_rotation(model, recipe, facts), None) is None:
        return recipe
    steps = tuple(
        step.model_copy(update={"rotate": None}) if isinstance(step, Quantize) else step for step in recipe.steps
    )
    return recipe.model_copy(update={"steps": steps})


def notes(model: ModelFacts, recipe: Recipe) -> list[str]:
    """Return what a rotation costs: quality with some methods, and an output head of its own where the embedding was
    it."""
    if not rotates(recipe):
        return []
    step, sentences = recipe.step("quantize"), list[str]()
    assert isinstance(step, Quantize)
    # 1. The methods that were measured to lose more with it.
    if step.method in WORSE and option_value(step, "activations") != "none":
        before, after = WORSE[step.method]
        sentences.append(
            f"A rotation helps where activations are rounded to integers. With `{step.method}` it raised the mean KL "
            f"of SmolLM2-135M-Instruct from {before} to {after}: make it without `rotate` too, and compare."
        )
    # 2. The head.
    if rotation.untied(model, recipe) is not model:
        head = serving_memory.weights(model, recipe).head
        sentences.append(
            "The rotation gives the model an output head of its own beside the embedding: "
            f"{figure(head / 1e6)} MB more."
        )
    return sentences
