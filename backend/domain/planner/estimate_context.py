"""Inputs of an estimate besides the model and the recipe, and both as a server is started. Pure."""

from __future__ import annotations

from backend.domain.frozen import Frozen
from backend.domain.needs.hardware_rates import HardwareRates
from backend.domain.needs.kv_cache_tokens import POOL_SLOTS
from backend.domain.neuron import cores
from backend.domain.planner import roofline
from backend.domain.planner.draft_payoff import DraftShape, PayoffMap
from backend.domain.planner.estimate_correction import Calibration
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.rules.target_facts import TargetFacts


class EstimateContext(Frozen):
    """Inputs that an estimate needs besides the model and the recipe.

    `runs` is what runs the job; prices are USD per hour.
    """

    target: str
    facts: TargetFacts
    load: ExpectedLoad = ExpectedLoad()
    runs: HardwareRates | None = None
    price_per_hour: float | None = None
    price_note: str | None = None
    price_missing: str = "none is published"
    """Why there is no price, if there is none."""
    acceptance: float | None = None
    """Measured probability of acceptance, where an evaluation has one."""
    trained: float | None = None
    """The probability by the draft's own training, measured on answers that were set aside."""
    calibration: Calibration | None = None
    payoff: PayoffMap | None = None
    """The payoff map of what is served there, if one was measured."""

    def gains(self, recipe: Recipe) -> roofline.Gains | None:
        """Return the measured gains of speculation; None where the formula must be used.

        That is without a map, and with a method that does not make a step for each proposed token.
        """
        draft, step = self.facts.serving_draft(recipe), recipe.step("speculate")
        if self.payoff is None or draft is None or not isinstance(step, Speculate) or SPECULATE[step.method].once:
            return None
        return self.payoff.gains(DraftShape(parameters=draft.parameters, layers=draft.layers))

    def at_concurrency(self, concurrency: int) -> EstimateContext:
        """Return the same with another number of concurrent requests."""
        return self.model_copy(update={"load": self.load.model_copy(update={"concurrency": concurrency})})


def with_slots(recipe: Recipe, load: ExpectedLoad) -> Recipe:
    """Return the recipe with as many slots as llama.cpp is started with for the load."""
    if recipe.serving.max_num_seqs is not None:
        return recipe
    slots = max(POOL_SLOTS, load.concurrency)
    return recipe.model_copy(update={"serving": recipe.serving.model_copy(update={"max_num_seqs": slots})})


def as_compiled(recipe: Recipe, context: EstimateContext) -> tuple[Recipe, EstimateContext]:
    """Return both with the sequences that are compiled for, and the cores that a program sees."""
    device = context.facts.device
    facts = context.facts.model_copy(update={"device": cores.logical_device(device) if device else None})
    serving = recipe.serving.model_copy(update={"max_num_seqs": cores.batch_size(recipe)})
    return recipe.model_copy(update={"serving": serving}), context.model_copy(update={"facts": facts})
