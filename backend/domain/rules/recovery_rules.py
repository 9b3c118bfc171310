"""The rule that a recovery must be possible: no experts, and memory for the whole model where the job runs."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.model.facts import ModelFacts
from backend.domain.needs import recovery
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules.plan import Facts, Reason


def fits(model: ModelFacts, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    step = recovery.asked(recipe)
    if step is None:
        return
    if model.experts:
        message = "Recovery has no adapters for models made of experts: leave `recover` out."
        yield Reason(rule="recovery-experts", message=message, source="engines/native/recovery_model.py")
    held, where = _memory(facts)
    needed = recovery.memory_bytes(model, recipe)
    if held is not None and needed > held:
        smaller = "`teacher: false`, a smaller `batch`" if step.teacher else "a smaller `batch`"
        sizes = f"about {recovery.size(needed)}, and {where} has {recovery.size(held)}"
        message = f"Recovery holds the whole model in memory, {sizes}"
        yield Reason(
            rule="recovery-memory", message=f"{message}: use {smaller}, or leave `recover` out.", source="domain/recovery_need.py"
        )


def _memory(facts: Facts) -> tuple[int | None, str]:
    """Of the one device that would hold it; None where that is not known."""
    if facts.hardware == "cuda" and facts.device is not None:
        return facts.device.memory_bytes, f"one accelerator of {facts.where}"
    if facts.hardware == "cpu" and facts.ram_bytes is None and facts.device is not None:
        return facts.device.memory_bytes or None, facts.where
    return facts.ram_bytes, facts.where
