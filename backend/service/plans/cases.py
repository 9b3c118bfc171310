"""A case: a model, a recipe and a target, resolved once with all facts that the rules read, and the verdict.

A page or command resolves its case once and passes it to the estimate, to the display of the verdict and to the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.domain.errors import TooDemanding
from backend.domain.frozen import Frozen
from backend.domain.machine.targets import Target
from backend.domain.model.facts import ModelFacts
from backend.domain.model.preflight import Preflight
from backend.domain.needs import rotation
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetChoice, TargetGoal
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.quantize_step import rotates
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Speculate, Step, read
from backend.domain.rules import check, gguf_rules, kernel_rules
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import MEMORY, Reason, TargetFacts
from backend.hardware import engine_status
from backend.service.machines import targets
from backend.service.models import models, preflight, technique_checks
from backend.service.plans import auto_target
from backend.service.workspace import Workspace


@dataclass(frozen=True)
class Case:
    """A model and a recipe on one target, and the verdict of the rules.

    `target_name` is the target as it was written, `target` the resolved one: for `auto` the instance that `choice`
    names or, if nothing meets the goal, the closest one. `verdict` is that of the recipe there; for `auto`, at the
    chosen degree of tensor parallelism.
    """

    model: ModelFacts
    recipe: Recipe
    target_name: str
    target: Target
    facts: TargetFacts
    verdict: Verdict
    goal: TargetGoal | None = None
    choice: TargetChoice | None = None

    @property
    def draft(self) -> ModelFacts | None:
        """The draft that the recipe uses; None if it has none, or the model has none."""
        return self.facts.draft

    @property
    def works(self) -> bool:
        """True if the recipe is valid and, for `auto`, an instance meets the goal."""
        return self.verdict.valid and (self.choice is None or self.choice.winner is not None)

    @property
    def served(self) -> bool:
        """True if it works, and something at the target serves the result."""
        return self.works and kernel_rules.find_unserved_format(self.model, self.recipe, self.facts) is None


def resolve(
    workspace: Workspace,
    model: ModelFacts,
    recipe: Recipe,
    target: str = "local",
    goal: TargetGoal | None = None,
    load: ExpectedLoad | None = None,
    *,
    probe: bool = False,
) -> Case:
    """Return the case of that model and recipe on that target; `auto` chooses an instance by goal and load.

    With `probe`, this machine's speed is measured if it is unknown, which takes seconds and only an estimate needs.
    Raises InvalidRecipe for an unknown target, UnknownModel or InvalidModel for a draft that does not exist.
    """
    # 1. Find the draft and the target.
    draft = models.find_draft(workspace, model, recipe)
    choice = auto_target.choose_target(workspace, model, recipe, goal, load) if target == "auto" else None
    if choice is not None:
        where = auto_target.shown_target(workspace, choice)
    else:
        where = targets.find(workspace, target, measured="now" if probe else "before")
    # 2. Gather the facts and let the rules decide.
    served = with_degree(recipe, choice.winner.tensor_parallel) if choice and choice.winner else recipe
    facts = _with_speculation_facts(workspace, recipe, targets.rule_facts(where, model, draft))
    verdict = _with_preflight(workspace, model, recipe, technique_checks.decide(workspace, model, served, facts))
    # 3. Take the replicas that `auto` chose.
    if verdict.plan is not None and choice is not None and choice.winner is not None:
        verdict = verdict.model_copy(
            update={"plan": verdict.plan.model_copy(update={"replicas": choice.winner.replicas})}
        )
    return Case(model, recipe, target, where, facts, verdict, goal, choice)


def _with_preflight(workspace: Workspace, model: ModelFacts, recipe: Recipe, verdict: Verdict) -> Verdict:
    """The verdict with what a look at the model's files says: against the recipe, or as notes of its plan."""
    rewrites = any(isinstance(step, Quantize | Prune) for step in recipe.steps)
    try:
        result = preflight.run_preflight(workspace.settings.cache, model)
    except TooDemanding as error:  # a model that does not fit here is refused for that
        if verdict.plan is None:
            return verdict
        result = Preflight(refusal=error.problem)
    against = result.refusal or (rewrites and (result.unbuilt or result.unrewritable)) or None
    if against is None and result.further_heads and rotates(recipe):
        against = rotation.FURTHER_HEADS
    if against is not None:
        reason = Reason(rule="model-files", message=against, source="the model's files, read by transformers")
        known = {reason.message for reason in verdict.reasons}
        reasons = verdict.reasons if against in known else (reason, *verdict.reasons)
        return verdict.model_copy(
            update={"plan": None, "reasons": reasons, "suggestion": None, "suggestion_target": None}
        )
    if verdict.plan is None:
        return verdict
    notes = (*verdict.plan.notes, *result.sentences)
    return verdict.model_copy(update={"plan": verdict.plan.model_copy(update={"notes": notes})})


def _with_speculation_facts(workspace: Workspace, recipe: Recipe, facts: TargetFacts) -> TargetFacts:
    """With what a `speculate` step needs beside model and draft: proposers of one's own, a library."""
    step = recipe.step("speculate")
    if isinstance(step, Speculate) and step.method == "suffix":
        return facts.model_copy(
            update={"suffixes": not engine_status.lacks_package(workspace.settings, "serve", "arctic-inference")}
        )
    folder = workspace.settings.proposers
    if isinstance(step, Speculate) and step.method == "custom" and folder is not None:
        modules = (path for path in Path(folder).glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file())
        return facts.model_copy(update={"proposers": tuple(sorted(path.stem for path in modules))})
    return facts


def with_degree(recipe: Recipe, degree: int) -> Recipe:
    """The recipe with that tensor parallel degree."""
    return recipe.model_copy(update={"serving": recipe.serving.model_copy(update={"tensor_parallel": degree})})


class Addition(Frozen):
    """A step this version can do, and why it cannot be added to a recipe; None where it can.

    `instead` is the nearest recipe that has it: the step put in the place of another of its technique, or what else
    would work.
    """

    step: Step
    reason: str | None
    instead: Recipe | None = None


def additions(workspace: Workspace, model: ModelFacts, recipe: Recipe, case: Case | None) -> list[Addition]:
    """Every step of the capability table, in groups that divide the model, with the first reason that adding it to the
    recipe would bring up.

    `case`: the recipe's own; None where there is none, since its target or draft is not known: then for this machine.
    """
    # 1. The facts, with a draft.
    own = models.resolve_draft(workspace, model, "auto")
    facts = case.facts if case else targets.rule_facts(targets.find(workspace, "local"), model, own)
    with_draft = facts if facts.draft else facts.model_copy(update={"draft": own})
    # 2. Try each step of the capability table.
    verdict = case.verdict if case else check.check_recipe(model, recipe, with_draft)
    known = {reason.message for reason in verdict.reasons}
    misfits = any(reason.rule == MEMORY for reason in verdict.reasons)  # then each step would say so with its own bytes
    results = []
    for row in supported():
        (step,) = with_dividing_group(model, Recipe(steps=(_plain_step(row),))).steps
        longer = gguf_rules.with_engine_of_file(recipe, recipe.model_copy(update={"steps": (*recipe.steps, step)}))
        brought = [
            r.message
            for r in check.check_recipe(model, longer, with_draft, suggest=False).reasons
            if r.message not in known and not (misfits and r.rule == MEMORY)
        ]
        instead = (
            _alternative(model, recipe, verdict, step, facts.model_copy(update={"draft": own})) if brought else None
        )
        results.append(Addition(step=step, reason=brought[0] if brought else None, instead=instead))
    return results


def _alternative(model: ModelFacts, recipe: Recipe, own: Verdict, step: Step, facts: TargetFacts) -> Recipe | None:
    """A valid recipe, other than the one there is with its `own` verdict, that has a step of this technique and
    method."""
    others = tuple(other for other in recipe.steps if other.technique != step.technique)
    place = next(
        (number for number, other in enumerate(recipe.steps) if other.technique == step.technique), len(others)
    )
    swapped = recipe.model_copy(update={"steps": (*others[:place], step, *others[place:])})
    verdict = own if swapped == recipe else check.check_recipe(model, swapped, facts)
    nearest = swapped if verdict.valid else verdict.suggestion
    if nearest is None or nearest == recipe:
        return None
    has_step = any(other.technique == step.technique and _method(other) == _method(step) for other in nearest.steps)
    return nearest if has_step else None


def _method(step: Step) -> str | None:
    return getattr(step, "method", None)


def _plain_step(row: tuple[str, str | None, str, list[str]]) -> Step:
    """The step of a capability, every other option at its default."""
    technique, method, _, _ = row
    options = {"method": method} if method else {}
    if method == "draft":
        options["draft"] = "auto"
    return read({"steps": [{technique: options}]}).steps[0]
