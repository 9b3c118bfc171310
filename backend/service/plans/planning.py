"""Estimates of a recipe on a target, and the choice of the cheapest instance. What is known of models, hardware and earlier
measurements comes together here; the arithmetic is `domain.estimate`'s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from backend.domain.errors import ImpossibleStack
from backend.domain.machine.targets import Hardwares, Target
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving
from backend.domain.planner import estimate
from backend.domain.planner.choose import Candidate, Choice, Goal, best, choose
from backend.domain.planner.estimate import Context, Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check
from backend.domain.rules.facts import Facts
from backend.service.machines import targets
from backend.service.plans import calibrations, recipes
from backend.service.workspace import Workspace


def estimate_on(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str = "local", load: ExpectedLoad | None = None, *,
    acceptance: float | None = None, price_per_hour: float | None = None, probe: bool = True,
) -> Estimate:  # fmt: skip
    """The estimate on one target, corrected by an evaluation where this model was measured under this recipe on this machine.

    `price_per_hour` in USD is for machines without a published price. Without `probe` this machine's speed is what was measured
    before, or unknown: measuring takes seconds.
    Raises InvalidRecipe for an unknown target, ImpossibleStack with every reason where the recipe is not valid there.
    """
    where = targets.find(workspace, target, measured="now" if probe else "before")
    draft = recipes.draft_of(workspace, model, chosen)
    facts = targets.facts(where, model, draft)
    verdict = check.check(model, chosen, facts)
    if verdict.plan is None:
        raise ImpossibleStack(" ".join(reason.message for reason in verdict.reasons))
    asked = load or ExpectedLoad()
    context = _context(where, facts, asked, price_per_hour).model_copy(update={"acceptance": acceptance})
    if found := calibrations.calibrate(workspace, model, chosen, facts, asked.concurrency):
        context = context.model_copy(
            update={"calibration": found[0], "acceptance": found[1] if acceptance is None else acceptance}
        )
    return estimate.estimate(model, chosen, context, verdict.plan.tensor_parallel)


def candidates(
    model: ModelFacts, chosen: Recipe, draft: ModelFacts | None, places: Sequence[Target], load: ExpectedLoad,
    goal: Goal | None = None,
) -> list[Candidate]:  # fmt: skip
    """The recipe on each of these targets: valid with an estimate, or the reasons.

    With a goal, a recipe that states no tensor parallel degree is tried with every one the target has, and the best is kept.
    """
    return [_candidate(model, chosen, where, targets.facts(where, model, draft), load, goal) for where in places]


def _candidate(
    model: ModelFacts, chosen: Recipe, where: Target, facts: Facts, load: ExpectedLoad, goal: Goal | None
) -> Candidate:
    verdict = check.check(model, chosen, facts, suggest=False)
    if verdict.plan is None:
        return Candidate(target=where.name, verdict=verdict, estimate=None)
    context, degrees = _context(where, facts, load, None), [verdict.plan.tensor_parallel]
    if goal and chosen.serving.tensor_parallel == 1:
        degrees = [n for n in serving.degrees(model, chosen, where.device) if n >= degrees[0]] or degrees
    made = [estimate.estimate(model, chosen, context, degree) for degree in degrees]
    return Candidate(target=where.name, verdict=verdict, estimate=best(made, goal) if goal else made[0])


def auto(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, goal: Goal | None = None, load: ExpectedLoad | None = None
) -> Choice:
    """The cheapest of the instances that fits and meets the goal, by our engines, with the others and why they lost."""
    draft = recipes.draft_of(workspace, model, chosen)
    return _choice(_Question(model, chosen, draft, targets.hardwares(workspace), load or ExpectedLoad(), goal or Goal()))


class _Question:
    """What a choice depends on, the same where its content is the same: a page asks it anew at every click."""

    def __init__(
        self, model: ModelFacts, chosen: Recipe, draft: ModelFacts | None, known: Hardwares, load: ExpectedLoad, goal: Goal
    ) -> None:
        self.model, self.chosen, self.draft, self.known, self.load, self.goal = model, chosen, draft, known, load, goal
        prices = tuple((row.name, row.sagemaker_usd_per_hour, row.price_as_of) for row in known.instances.values())
        models = (model.model_dump_json(), draft.model_dump_json() if draft else None)
        self._content = (models, chosen.hash, load, goal, prices)

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._content == other._content


@lru_cache(maxsize=64)
def _choice(asked: _Question) -> Choice:
    found = candidates(asked.model, asked.chosen, asked.draft, asked.known.targets(), asked.load, asked.goal)
    return choose(found, asked.goal)


def settled(workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str) -> str:
    """The target itself; for `auto` the instance that is chosen, or this machine where none does."""
    if target != "auto":
        return target
    winner = auto(workspace, model, chosen).winner
    return winner.target if winner else "local"


def _context(where: Target, facts: Facts, load: ExpectedLoad, price_per_hour: float | None) -> Context:
    own = where.price_per_hour
    return Context(
        target=where.name, facts=facts, load=load, processor=targets.processor(where),
        price_per_hour=price_per_hour if price_per_hour is not None else own,
        price_note="as given" if price_per_hour is not None else targets.price_note(where.instance),
    )  # fmt: skip
