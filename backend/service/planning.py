"""Estimates of a recipe on a target, and the choice of the cheapest instance. What is known of models and hardware comes together
here; the arithmetic is `domain.estimate`'s."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain import compat, estimate, memory, plan
from backend.domain.calibration import Calibration
from backend.domain.choose import Candidate, Choice, Goal, best, choose
from backend.domain.errors import ImpossibleStack
from backend.domain.estimate import Context, Estimate
from backend.domain.model import ModelFacts
from backend.domain.recipe import Recipe
from backend.domain.roofline import Load
from backend.domain.targets import Target
from backend.service import recipes, targets
from backend.service.workspace import Workspace


def estimate_on(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str = "local", load: Load | None = None, *,
    acceptance: float | None = None, calibration: Calibration | None = None, price_per_hour: float | None = None,
) -> Estimate:  # fmt: skip
    """The estimate on one target. `price_per_hour` in USD is for machines without a published price.

    Raises InvalidRecipe for an unknown target, ImpossibleStack with every reason where the recipe is not valid there.
    """
    where = targets.find(workspace, target, measured=True)
    draft = recipes.draft_of(workspace, model, chosen)
    facts = targets.facts(where, model, draft)
    verdict = compat.check(model, chosen, facts)
    if verdict.plan is None:
        raise ImpossibleStack(" ".join(reason.message for reason in verdict.reasons))
    context = _context(where, facts, load or Load(), price_per_hour)
    context = context.model_copy(update={"acceptance": acceptance, "calibration": calibration})
    return estimate.estimate(model, chosen, context, verdict.plan.tensor_parallel)


def candidates(
    model: ModelFacts, chosen: Recipe, draft: ModelFacts | None, places: Sequence[Target], load: Load, goal: Goal | None = None
) -> list[Candidate]:
    """The recipe on each of these targets: valid with an estimate, or the reasons.

    With a goal, a recipe that states no tensor parallel degree is tried with every one the target has, and the best is kept.
    """
    return [_candidate(model, chosen, where, targets.facts(where, model, draft), load, goal) for where in places]


def _candidate(model: ModelFacts, chosen: Recipe, where: Target, facts: plan.Facts, load: Load, goal: Goal | None) -> Candidate:
    verdict = compat.check(model, chosen, facts, suggest=False)
    if verdict.plan is None:
        return Candidate(target=where.name, verdict=verdict, estimate=None)
    context, degrees = _context(where, facts, load, None), [verdict.plan.tensor_parallel]
    if goal and chosen.serving.tensor_parallel == 1:
        degrees = [n for n in memory.degrees(model, chosen, where.device) if n >= degrees[0]] or degrees
    made = [estimate.estimate(model, chosen, context, degree) for degree in degrees]
    return Candidate(target=where.name, verdict=verdict, estimate=best(made, goal) if goal else made[0])


def auto(workspace: Workspace, model: ModelFacts, chosen: Recipe, goal: Goal | None = None, load: Load | None = None) -> Choice:
    """The cheapest of the instances that fits and meets the goal, by our engines, with the others and why they lost."""
    draft = recipes.draft_of(workspace, model, chosen)
    wanted = goal or Goal()
    return choose(candidates(model, chosen, draft, targets.hardwares(workspace).targets(), load or Load(), wanted), wanted)


def settled(workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str) -> str:
    """The target itself; for `auto` the instance that is chosen, or this machine where none does."""
    if target != "auto":
        return target
    winner = auto(workspace, model, chosen).winner
    return winner.target if winner else "local"


def _context(where: Target, facts: plan.Facts, load: Load, price_per_hour: float | None) -> Context:
    own = where.price_per_hour
    return Context(
        target=where.name, facts=facts, load=load, processor=targets.processor(where),
        price_per_hour=price_per_hour if price_per_hour is not None else own,
        price_note="as given" if price_per_hour is not None else targets.price_note(where.instance),
    )  # fmt: skip
