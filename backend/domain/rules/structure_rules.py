"""The rules on structured pruning: families, targets that no structure reaches, and those that remove nothing."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving_memory, structure
from backend.domain.recipe import methods
from backend.domain.recipe.recipe import Prune, Recipe
from backend.domain.rules.target_facts import Reason, TargetFacts

DECISION = "docs/decisions/0066-structured-pruning.md"


def check_structure(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a family that has not such parts, then a target that no structure reaches or that is reached already."""
    step = structure.find_step(recipe)
    if step is None:
        return
    message = _family_problem(model, step) or structure.problem(model, recipe) or _size_problem(model, recipe, step)
    if message is not None:
        yield Reason(rule="structure", message=message, source=DECISION)


def mend_step(model: ModelFacts, recipe: Recipe) -> Prune | None:
    """Return the recipe's structured pruning as the model takes it: with parts that it has, and the nearest target
    that is reached. None where the recipe has no such step."""
    step = structure.find_step(recipe)
    if step is None:
        return None
    if step.method == "experts" and not model.experts:
        step = step.model_copy(update={"method": "depth"})
    elif step.method == "experts" and step.cut_time is not None:
        step = step.model_copy(update={"cut_time": None})
    elif step.method == "width" and (model.experts or model.model_type not in methods.WIDTH_FAMILIES):
        step = step.model_copy(update={"method": "depth", "parts": None})
    elif step.parts not in {None, "mlp"} and model.model_type not in methods.HEAD_FAMILIES:
        step = step.model_copy(update={"parts": "mlp"})
    elif step.parts == "mlp+heads+hidden" and model.model_type not in methods.HIDDEN_FAMILIES:
        step = step.model_copy(update={"parts": "mlp+heads"})
    others = tuple(step if structure.find_step(recipe) is other else other for other in recipe.steps)
    return structure.reachable(model, recipe.model_copy(update={"steps": others}))


def _family_problem(model: ModelFacts, step: Prune) -> str | None:
    """Return why the model has not the parts that the method removes, with what to use instead."""
    if step.method == "experts":
        if not model.experts:
            return f"{model.id} has no experts to remove: use `method: depth` or `method: width`."
        if step.cut_time is not None:
            return (
                "A token meets as many experts as before, so fewer of them save memory and no time of a layer: use "
                "`cut_parameters` or `max_bytes`."
            )
    if step.method == "width" and model.experts:
        return f"The MLPs of {model.id} are experts: use `method: experts`, or `method: depth`."
    if step.method == "width" and model.model_type not in methods.WIDTH_FAMILIES:
        known = ", ".join(sorted(methods.WIDTH_FAMILIES))
        return (
            f"Layers of type {model.model_type} store several projections as one matrix, which `method: width` does "
            f"not cut: use `method: depth`. It knows {known}."
        )
    if step.parts not in {None, "mlp"} and model.model_type not in methods.HEAD_FAMILIES:
        return (
            f"vLLM takes the size of a head of type {model.model_type} from the hidden size and the number of heads, "
            "so neither can change: use `parts: mlp`."
        )
    if step.parts == "mlp+heads+hidden" and model.model_type not in methods.HIDDEN_FAMILIES:
        known = ", ".join(sorted(methods.HIDDEN_FAMILIES))
        return (
            f"Channels of the hidden state of type {model.model_type} cannot be removed, since its computation "
            f"depends on their number: use `parts: mlp+heads`. It is possible for {known}."
        )
    return None


def _size_problem(model: ModelFacts, recipe: Recipe, step: Prune) -> str | None:
    """Return that the weights are within `max_bytes` without the step."""
    if step.max_bytes is None:
        return None
    rest = recipe.model_copy(update={"steps": tuple(other for other in recipe.steps if other is not step)})
    size = serving_memory.weights(model, rest).total
    if size > step.max_bytes:
        return None
    return f"The weights take {size / 1e6:,.0f} MB without pruning, within `max_bytes`: leave `prune` out."
