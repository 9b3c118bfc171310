"""The price of a million tokens, on a chosen instance or on the one with the lowest price per token."""

from __future__ import annotations

from backend.domain.errors import WhetstoneError
from backend.domain.figures import figure
from backend.domain.frozen import Frozen
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.planned_load import PlannedLoad, fit_context
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.recipe.recipe import ORIGINAL, Recipe
from backend.present import load_words
from backend.service.machines import targets
from backend.service.plans import auto_target, cases, estimates
from backend.service.workspace import Workspace

CHEAPEST_TOKEN = TargetGoal(wanted="throughput")


class ModelPrice(Frozen):
    """USD per million output tokens, (least, most), estimated. `chosen`: the instance was named, else the cheapest a
    token."""

    target: str
    chosen: bool
    per_million_output: tuple[float, float]
    per_hour: float
    region: str | None
    note: str | None
    load: ExpectedLoad
    load_text: str
    """The load, with the requests in flight if it is a rate."""
    instances: int
    """Instances that carry the rate; the price per token is then of the tokens that it asks for."""
    beyond: str | None
    """Why one instance is not enough, in a sentence; None if it is."""
    replicas: int
    tensor_parallel: int

    @property
    def span(self) -> str:
        """`1.15 to 2.29`."""
        return " to ".join(dict.fromkeys(map(figure, self.per_million_output)))

    @property
    def where(self) -> str:
        """Instance, region, hour and load."""
        place = f"{load_words.several(self.target, self.instances)}{f' ({self.region})' if self.region else ''}"
        hour = f"{figure(self.instances * self.per_hour)} USD per hour"
        basis = f"; per token that {self.load.demand} ask for" if self.load.rate is not None else ""
        return f"on {place} at {hour}; {self.load_text}; estimated{basis}"

    @property
    def words(self) -> str:
        """The figure with all that beside it."""
        return f"{self.span} USD per million output tokens {self.where}"


def find_price(
    workspace: Workspace,
    model: ModelFacts,
    recipe: Recipe = ORIGINAL,
    target: str | None = None,
    expected_load: ExpectedLoad | None = None,
    goal: TargetGoal = CHEAPEST_TOKEN,
) -> ModelPrice | None:
    """At that load, shortened to the model's context; without one at the load that nobody changed.

    None where the model generates nothing, the recipe is not valid there, no price or speed is known, or no instance
    meets the limits of the goal.
    """
    # 1. Estimate on the target, or where tokens are cheapest.
    expected_load = fit_context(expected_load or PlannedLoad().expected, model.max_positions)
    try:
        estimate = estimate_tokens(workspace, model, recipe, target, expected_load, goal)
    except WhetstoneError:
        return None
    if estimate is None or estimate.price_per_million_output is None or estimate.price_per_hour is None:
        return None
    # 2. Add where the price holds.
    instance = targets.find(workspace, estimate.target).instance
    return ModelPrice(
        target=estimate.target,
        chosen=target is not None,
        per_million_output=estimate.price_per_million_output,
        per_hour=estimate.price_per_hour,
        region=instance.price_region if instance else None,
        note=estimate.price_note,
        load_text=estimate.load_text,
        load=estimate.load,
        instances=estimate.instances,
        beyond=load_words.instances_sentence(estimate),
        replicas=estimate.replicas,
        tensor_parallel=estimate.tensor_parallel,
    )


def estimate_tokens(
    workspace: Workspace,
    model: ModelFacts,
    recipe: Recipe,
    target: str | None,
    expected_load: ExpectedLoad,
    goal: TargetGoal = CHEAPEST_TOKEN,
) -> Estimate | None:
    """There, or on the instance that the goal chooses; None where no instance will do."""
    if target is None:
        return auto_target.choose_target(workspace, model, recipe, goal, expected_load).winner
    return estimates.estimate_one(workspace, cases.resolve(workspace, model, recipe, target), expected_load)
