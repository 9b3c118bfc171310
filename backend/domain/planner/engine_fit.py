"""Engines that serve a model as it is on one target, with the memory and the time to ready that are predicted.

Pure arithmetic over the card, the target's facts and the engines' costs.
"""

from __future__ import annotations

from backend.domain.frozen import Frozen
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import engine_costs, serving_memory
from backend.domain.recipe.recipe import Recipe, Serving
from backend.domain.recipe.serving_engines import ENGINES, SERVED, EngineName
from backend.domain.rules import check
from backend.domain.rules.target_facts import MEMORY, TargetFacts


class EngineFit(Frozen):
    """One engine with the unchanged model. `reasons` is empty where it serves the model there."""

    engine: EngineName
    weight_format: str
    """The form of the weights that it reads: `Q4_1`, `bfloat16`."""
    memory_bytes: tuple[int, int] | None
    """(least, most) bytes with `cache_tokens` in the cache, predicted; None where the size is not known."""
    cache_tokens: int
    ready_seconds: tuple[float, float] | None
    """(least, most) seconds until it answers, predicted; None where no start was timed on such hardware."""
    basis: str
    """The source of the prediction."""
    reasons: tuple[str, ...] = ()
    too_large: bool = False
    """The only reason is memory."""

    @property
    def fits(self) -> bool:
        return not self.reasons

    @property
    def title(self) -> str:
        return ENGINES[self.engine].title


def engine_fits(model: ModelFacts, facts: TargetFacts) -> list[EngineFit]:
    """Return each engine of the table that runs on the target's hardware, in the table's order."""
    engines = dict.fromkeys(row.engine for row in SERVED if row.hardware == facts.hardware)
    return [_fit(model, facts, engine) for engine in engines]


def fits_any(model: ModelFacts, facts: TargetFacts) -> bool:
    """Return whether an engine serves the unchanged model there."""
    return any(
        check.is_valid(model, Recipe(serving=Serving(engine=engine)), facts)
        for engine in dict.fromkeys(row.engine for row in SERVED if row.hardware == facts.hardware)
    )


def _fit(model: ModelFacts, facts: TargetFacts, engine: EngineName) -> EngineFit:
    # 1. The rules about the unchanged model on that engine.
    recipe, device = Recipe(serving=Serving(engine=engine)), facts.device
    reasons = check.check_recipe(model, recipe, facts, suggest=False).reasons
    # 2. Memory and time to ready, predicted.
    tokens = serving_memory.required_cache_tokens(model, recipe)
    memory = None
    if device is not None:
        memory = serving_memory.device_memory(model, recipe, device, 1).needed_bytes(tokens)
    weight_bytes = serving_memory.weights(model, recipe).total
    costs = engine_costs.find_costs(engine, facts.hardware)
    return EngineFit(
        engine=engine,
        weight_format=serving_memory.weight_format(model, recipe),
        memory_bytes=memory,
        cache_tokens=tokens,
        ready_seconds=engine_costs.ready_seconds(engine, facts.hardware, weight_bytes),
        basis=f"predicted from {costs.source}" if costs else f"nothing is known of it on {facts.hardware}",
        reasons=tuple(reason.message for reason in reasons),
        too_large=bool(reasons) and all(reason.rule == MEMORY for reason in reasons),
    )
