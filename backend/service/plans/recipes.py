"""Recipes: YAML in and out, and the check of a recipe against a model and a target."""

from __future__ import annotations

from pathlib import Path

import yaml

from backend.domain.errors import InvalidRecipe
from backend.domain.frozen import Frozen
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe, Speculate, Step
from backend.domain.recipe.techniques import supported
from backend.domain.rules import check as compat
from backend.domain.rules.facts import Facts
from backend.domain.rules.plan import Verdict
from backend.service.machines import targets
from backend.service.models import models
from backend.service.plans import recipe_text
from backend.service.plans.recipe_text import MAX_BYTES
from backend.service.workspace import Workspace
from backend.settings import ASSETS

BREAKS = frozenset("\x85\u2028\u2029\ufeff")
"""Line breaks to YAML: PyYAML writes them as they are and reads them back as something else."""


class Addition(Frozen):
    """A step this version can do, and why it cannot be added to a recipe; None where it can.

    `instead` is the nearest recipe that has it: the step put in the place of another of its technique, or what else would work.
    """

    step: Step
    reason: str | None
    instead: Recipe | None = None


def read_file(path: Path) -> Recipe:
    """A recipe file, or a bundled recipe by its name. Raises InvalidRecipe."""
    bundled = ASSETS / "recipes" / f"{path.name.removesuffix('.yaml')}.yaml"
    actual = path if path.is_file() else bundled
    if not actual.is_file():
        names = ", ".join(bundled_names())
        raise InvalidRecipe(f"There is no recipe file {path}: give a YAML file, or one of {names}.")
    if actual.stat().st_size > MAX_BYTES:
        raise InvalidRecipe(f"{path} has more than {MAX_BYTES // 1000} kB: a recipe has a few lines.")
    try:
        return read_text(actual.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidRecipe(f"{path} is not text: a recipe is a YAML file.") from None


def read_text(text: str) -> Recipe:
    """Parse YAML strictly. Raises InvalidRecipe naming line and column, or the wrong field."""
    return recipe.read(recipe_text.read(text))


def write_text(chosen: Recipe) -> str:
    """The recipe as YAML, defaults left out."""
    document = chosen.model_dump(mode="json")
    for section in ("serving", "limits"):
        defaults = type(getattr(chosen, section))().model_dump(mode="json")
        document[section] = {k: v for k, v in document[section].items() if k not in defaults or v != defaults[k]}
        if not document[section]:
            del document[section]
    text = _dump(document, unicode=True)
    return _dump(document, unicode=False) if BREAKS.intersection(text) else text


def _dump(document: object, *, unicode: bool) -> str:
    dumped: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=unicode, width=100)
    return dumped


def bundled_names() -> list[str]:
    return sorted(path.stem for path in (ASSETS / "recipes").glob("*.yaml"))


def about(name: str) -> str:
    """What the bundled recipe of that name is, in a sentence: the comment that its file begins with."""
    return (ASSETS / "recipes" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def check(workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str = "local") -> tuple[Verdict, ModelFacts | None]:
    """The verdict, and the resolved draft where the recipe has one.

    Raises UnknownModel or InvalidModel where the recipe names a draft that is none, InvalidRecipe for an unknown target.
    """
    where = targets.find(workspace, target)
    draft = draft_of(workspace, model, chosen)
    verdict = compat.check(model, chosen, targets.facts(where, model, draft))
    if not verdict.valid and verdict.suggestion is None and where.instance is not None:
        verdict = _elsewhere(workspace, verdict, model, chosen, draft, managed=where.kind == "sagemaker")
    return verdict, draft


def _elsewhere(
    workspace: Workspace, verdict: Verdict, model: ModelFacts, chosen: Recipe, draft: ModelFacts | None, *, managed: bool
) -> Verdict:
    """Where nothing works on an instance: the cheapest one on which the recipe itself does, if there is one."""
    priced = [place for place in targets.hardwares(workspace).targets(managed) if place.price_per_hour is not None]
    for place in sorted(priced, key=lambda place: place.price_per_hour or 0.0):
        if compat.check(model, chosen, targets.facts(place, model, draft), suggest=False).valid:
            return verdict.model_copy(update={"suggestion": chosen, "suggestion_target": place.name})
    return verdict


def draft_of(workspace: Workspace, model: ModelFacts, chosen: Recipe) -> ModelFacts | None:
    """The draft that the recipe means; None where it has none, or the model brings none."""
    step = chosen.step("speculate")
    if not isinstance(step, Speculate) or step.method != "draft":
        return None
    return models.draft_facts(workspace, model, step.draft)


def additions(workspace: Workspace, model: ModelFacts, chosen: Recipe, target: str = "local") -> list[Addition]:
    """Every step of the capability table, with the first reason that adding it to the recipe would bring up."""
    facts = targets.facts(targets.find(workspace, target), model, models.draft_facts(workspace, model, "auto"))
    known = {reason.message for reason in compat.check(model, chosen, facts, suggest=False).reasons}
    found = []
    for step in map(_plain_step, supported()):
        longer = chosen.model_copy(update={"steps": (*chosen.steps, step)})
        brought = [r.message for r in compat.check(model, longer, facts, suggest=False).reasons if r.message not in known]
        instead = _instead(model, chosen, step, facts) if brought else None
        found.append(Addition(step=step, reason=brought[0] if brought else None, instead=instead))
    return found


def _instead(model: ModelFacts, chosen: Recipe, step: Step, facts: Facts) -> Recipe | None:
    """A valid recipe, other than the one there is, that has a step of this technique and method."""
    others = tuple(other for other in chosen.steps if other.technique != step.technique)
    place = next((number for number, other in enumerate(chosen.steps) if other.technique == step.technique), len(others))
    swapped = chosen.model_copy(update={"steps": (*others[:place], step, *others[place:])})
    verdict = compat.check(model, swapped, facts)
    nearest = swapped if verdict.valid else verdict.suggestion
    if nearest is None or nearest == chosen:
        return None
    kept = any(other.technique == step.technique and _method(other) == _method(step) for other in nearest.steps)
    return nearest if kept else None


def _method(step: Step) -> str | None:
    return getattr(step, "method", None)


def _plain_step(row: tuple[str, str | None, str, list[str]]) -> Step:
    """The step of a capability, every other option at its default."""
    technique, method, _, _ = row
    options = {"method": method} if method else {}
    if method == "draft":
        options["draft"] = "auto"
    return recipe.read({"steps": [{technique: options}]}).steps[0]
