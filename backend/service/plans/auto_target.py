"""`--target auto`: the instance on which a recipe is served best by a goal. What is known of models, hardware and
prices comes together here; the arithmetic is `domain.planner`'s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from backend.domain.frozen import Frozen
from backend.domain.kernels.conditions import Chip, Layer, StoredLayout
from backend.domain.kernels.kernel_choice import choose_kernel as choose_kernel
from backend.domain.machine import price_list
from backend.domain.machine.targets import HardwareTables, Target
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import parallel_layout, serving_memory, structure
from backend.domain.planner import estimate
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_context import EstimateContext
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import (
    TargetCandidate,
    TargetChoice,
    TargetGoal,
    choose_estimate,
    find_miss,
    rank_candidates,
)
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check, kernel_rules
from backend.domain.rules.target_facts import Reason, TargetFacts
from backend.service.machines import targets
from backend.service.models import models
from backend.service.workspace import Workspace

LAYOUTS = (
    StoredLayout("wNa16", 4, 128, zero_points=True),
    StoredLayout("wNa16", 8),
    StoredLayout("int8", activations="dynamic"),
    StoredLayout("fp8", activations="dynamic"),
)
"""Weight layouts that the methods store with default options."""


def choose_target(
    workspace: Workspace,
    model: ModelFacts,
    recipe: Recipe,
    goal: TargetGoal | None = None,
    load: ExpectedLoad | None = None,
) -> TargetChoice:
    """The cheapest of the instances that fits and meets the goal, by our engines, with the others and why they lost."""
    draft = models.find_draft(workspace, model, recipe)
    return _choose(
        _ChoiceInputs(model, recipe, draft, targets.hardwares(workspace), load or ExpectedLoad(), goal or TargetGoal())
    )


def rank_instances(
    workspace: Workspace, model: ModelFacts, recipe: Recipe, load: ExpectedLoad, goal: TargetGoal
) -> list[Estimate]:
    """Return the estimate on every instance with a price that serves the recipe, those that meet the goal's limits
    first, and within each the lowest price per million output tokens at the worst end of its range."""
    draft = models.find_draft(workspace, model, recipe)
    question = _ChoiceInputs(model, recipe, draft, targets.hardwares(workspace), load, goal)
    estimates = [candidate.estimate for candidate in _candidates(question) if candidate.estimate is not None]
    priced = [
        (find_miss(estimate, goal) is not None, estimate.price_per_million_output[1], estimate.target, estimate)
        for estimate in estimates
        if estimate.price_per_million_output is not None
    ]
    return [estimate for *_, estimate in sorted(priced, key=lambda each: each[:3])]


def resolve_target(workspace: Workspace, model: ModelFacts, recipe: Recipe, target: str) -> str:
    """The target itself; for `auto` the instance that is chosen, or this machine where none does."""
    if target != "auto":
        return target
    winner = choose_target(workspace, model, recipe).winner
    return winner.target if winner else "local"


def make_candidates(
    model: ModelFacts,
    recipe: Recipe,
    draft: ModelFacts | None,
    places: Sequence[Target],
    load: ExpectedLoad,
    goal: TargetGoal | None = None,
) -> list[TargetCandidate]:
    """The recipe on each of these targets: valid with an estimate, or the reasons.

    With a goal, a recipe that states no tensor parallel degree is tried with every one the target has, and the best is
    kept.
    """
    return [
        _make_candidate(model, recipe, where, targets.rule_facts(where, model, draft), load, goal) for where in places
    ]


def _make_candidate(
    model: ModelFacts, recipe: Recipe, where: Target, facts: TargetFacts, load: ExpectedLoad, goal: TargetGoal | None
) -> TargetCandidate:
    verdict = check.check_recipe(model, recipe, facts, suggest=False)
    if verdict.plan is None:
        return TargetCandidate(target=where.name, verdict=verdict, estimate=None)
    unserved = kernel_rules.find_unserved_format(model, recipe, facts)
    if unserved is not None:
        reason = Reason(rule="served", message=f"{unserved}.", source="capability table")
        refused = verdict.model_copy(update={"plan": None, "reasons": (reason,)})
        return TargetCandidate(target=where.name, verdict=refused, estimate=None)
    about, shared = make_context(where, facts, load), [(verdict.plan.tensor_parallel, verdict.plan.replicas)]
    # With a goal, try every layout that fits, unless the recipe chooses one.
    if goal and recipe.serving.tensor_parallel == 1:
        smaller, rest = structure.apply(model, recipe)
        tokens = serving_memory.required_cache_tokens(smaller, rest)
        layouts = parallel_layout.possible_layouts(
            smaller, rest, where.device, facts.serving_draft(recipe), tokens=tokens
        )
        shared = [(layout.degree, layout.replicas) for layout in layouts] or shared
    estimates = [estimate.estimate(model, recipe, about, degree, replicas) for degree, replicas in shared]
    return TargetCandidate(
        target=where.name, verdict=verdict, estimate=choose_estimate(estimates, goal) if goal else estimates[0]
    )


class FittingInstance(Frozen):
    """An instance on which a recipe is valid and fits. `price_per_hour` in USD, None where nobody publishes it."""

    target: str
    price_per_hour: float | None
    tensor_parallel: int
    replicas: int


def fitting_instances(workspace: Workspace, model: ModelFacts, recipe: Recipe, most: int = 3) -> list[FittingInstance]:
    """The cheapest instances on which our engines serve that recipe, those without a price last."""
    draft, fitting = models.find_draft(workspace, model, recipe), []
    for where in targets.hardwares(workspace).targets():
        facts = targets.rule_facts(where, model, draft)
        plan = check.check_recipe(model, recipe, facts, suggest=False).plan
        if plan is not None and kernel_rules.find_unserved_format(model, recipe, facts) is None:
            fitting.append(
                FittingInstance(
                    target=where.name,
                    price_per_hour=where.price_per_hour,
                    tensor_parallel=plan.tensor_parallel,
                    replicas=plan.replicas,
                )
            )
    return sorted(fitting, key=lambda each: (each.price_per_hour is None, each.price_per_hour or 0.0, each.target))[
        :most
    ]


class _ChoiceInputs:
    """Everything that a choice depends on, hashable by content, so that pages can cache the choice."""

    def __init__(
        self,
        model: ModelFacts,
        recipe: Recipe,
        draft: ModelFacts | None,
        known: HardwareTables,
        load: ExpectedLoad,
        goal: TargetGoal,
    ) -> None:
        self.model, self.recipe, self.draft, self.known, self.load, self.goal = model, recipe, draft, known, load, goal
        prices = tuple(
            (row.name, row.sagemaker_usd_per_hour, row.price_region, row.price_as_of)
            for row in known.instances.values()
        )
        facts = (model.model_dump_json(), draft.model_dump_json() if draft else None)
        self._content = (facts, recipe.hash, load, goal, prices)

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ChoiceInputs) and self._content == other._content


@lru_cache(maxsize=64)
def _candidates(question: _ChoiceInputs) -> list[TargetCandidate]:
    return make_candidates(
        question.model, question.recipe, question.draft, question.known.targets(), question.load, question.goal
    )


@lru_cache(maxsize=64)
def _choose(question: _ChoiceInputs) -> TargetChoice:
    return rank_candidates(_candidates(question), question.goal)


def make_context(
    where: Target, facts: TargetFacts, load: ExpectedLoad, price_per_hour: float | None = None
) -> EstimateContext:
    """Return what an estimate needs besides the model and the recipe. `price_per_hour` in USD takes the place of the
    target's own."""
    own = where.price_per_hour
    return EstimateContext(
        target=where.name,
        facts=facts,
        load=load,
        runs=targets.job_rates(where),
        price_per_hour=price_per_hour if price_per_hour is not None else own,
        price_missing=price_list.missing_note(where.instance),
        price_note="as given" if price_per_hour is not None else price_list.price_note(where.instance),
    )


def shown_target(workspace: Workspace, choice: TargetChoice) -> Target:
    """The instance that won; where none did, where to ask what would work instead: one that fits but misses the goal,
    else the one that can serve most methods, and of those the one with the most memory."""
    fits = [choice.winner.target] if choice.winner else [loser.target for loser in choice.losers if loser.fits]
    return targets.find(workspace, fits[0]) if fits else max(targets.hardwares(workspace).targets(), key=_abilities)


def _abilities(where: Target) -> tuple[int, int]:
    device = where.device
    chip, layer = Chip("cuda", device.capability), Layer("any", 4096, 4096, 4096)
    served = [layout for layout in LAYOUTS if device.capability and choose_kernel(layout, layer, chip).kernel]
    return len(served), device.memory_bytes * device.units
