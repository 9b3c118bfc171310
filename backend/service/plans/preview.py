"""What can be said of a model, a recipe and a target before anything runs: valid or why not, the estimate, the choice of `auto`;
and where the result of a job is meant to be served."""

from __future__ import annotations

from backend.domain.errors import ImpossibleStack, InvalidRecipe
from backend.domain.frozen import Frozen
from backend.domain.machine.targets import Target
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.choose import Choice, Deployment, Goal, Loser
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.techniques import KERNELS
from backend.domain.rules.plan import Verdict
from backend.service.machines import targets
from backend.service.models import catalog_sync
from backend.service.plans import planning, recipes
from backend.service.workspace import Workspace

RUNNERS_UP = 12
"""Losers that a job's specification keeps: those that could do it come first."""


class Outlook(Frozen):
    """`target` is where it is planned for: what was asked, or what `auto` chose; None where `auto` found nothing. `checked_on` is
    where the verdict holds: for such an `auto` the place where most would work."""

    asked: str
    target: str | None
    checked_on: str
    verdict: Verdict
    estimate: Estimate | None = None
    choice: Choice | None = None


def plannable(workspace: Workspace) -> list[str]:
    """Models that are known by published facts alone, by the names that `models.facts` takes."""
    return catalog_sync.names(workspace)


def look(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str = "local", goal: Goal | None = None,
    load: ExpectedLoad | None = None, price_per_hour: float | None = None,
) -> Outlook:  # fmt: skip
    """Measures nothing, so it is fast enough for a page.

    Raises InvalidRecipe for an unknown target, UnknownModel or InvalidModel for a draft that is none.
    """
    if target == "auto":
        return _automatic(workspace, model, chosen, goal, load)
    verdict, _ = recipes.check(workspace, model, chosen, target)
    found = None
    if verdict.valid:
        found = planning.estimate_on(workspace, model, chosen, target, load, price_per_hour=price_per_hour, probe=False)
    return Outlook(asked=target, target=target, checked_on=target, verdict=verdict, estimate=found)


def _automatic(workspace: Workspace, model: ModelFacts, chosen: Recipe, goal: Goal | None, load: ExpectedLoad | None) -> Outlook:
    choice = planning.auto(workspace, model, chosen, goal, load)
    won = choice.winner
    cut = degree(chosen, won.tensor_parallel) if won else chosen
    where = won.target if won else _roomiest(workspace, choice)
    verdict, _ = recipes.check(workspace, model, cut, where)
    return Outlook(
        asked="auto", target=won.target if won else None, checked_on=where, verdict=verdict, estimate=won, choice=choice
    )


def degree(chosen: Recipe, tensor_parallel: int) -> Recipe:
    """The recipe served over that many devices."""
    return chosen.model_copy(update={"serving": chosen.serving.model_copy(update={"tensor_parallel": tensor_parallel})})


def _roomiest(workspace: Workspace, choice: Choice) -> str:
    """Where to ask what would work instead: an instance that fits but misses the goal, else the one that can serve most methods,
    and of those the one with the most memory."""
    fits = [loser.target for loser in choice.losers if loser.fits]
    return fits[0] if fits else max(targets.hardwares(workspace).targets(), key=_abilities).name


def _abilities(where: Target) -> tuple[int, int]:
    has, device = where.device.capability, where.device
    served = [kernel for kernel in KERNELS.values() if has and kernel.serves(has)]
    return len(served), device.memory_bytes * device.units


def deployment(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str, goal: Goal | None = None,
    load: ExpectedLoad | None = None,
) -> Deployment | None:  # fmt: skip
    """Where the result of a job is to be served: None for this machine, else the target, or the instance that `auto` chooses.

    Raises InvalidRecipe for a target that no job can be for, ImpossibleStack where the recipe is not valid there or nothing meets
    the goal.
    """
    if target.startswith("local"):
        return None
    if target.startswith("sagemaker:"):
        raise InvalidRecipe(
            f"The managed toolkit of `{target}` would run the job itself, and this version starts nothing on AWS: plan with "
            "`whetstone recipe check`, or give the instance without `sagemaker:` to optimize here."
        )
    found = look(workspace, model, chosen, target, goal, load)
    if found.estimate is None:
        raise ImpossibleStack(_why_not(found))
    return _deployment(found.estimate, found.choice, goal)


def _deployment(found: Estimate, choice: Choice | None, goal: Goal | None) -> Deployment:
    made = Deployment(
        target=found.target, tensor_parallel=found.tensor_parallel, price_per_hour=found.price_per_hour, why="As asked."
    )
    if choice is None:
        return made
    chosen = {"why": choice.why, "goal": goal or Goal(), "job": choice.job, "losers": choice.losers[:RUNNERS_UP]}
    return made.model_copy(update=chosen)


def _why_not(found: Outlook) -> str:
    if found.choice is None:
        return " ".join(reason.message for reason in found.verdict.reasons)
    return " ".join([found.choice.why, *map(_lost, found.choice.losers[:3])])


def _lost(loser: Loser) -> str:
    return f"{loser.target}: {loser.why}"
