"""Checks of each technique alone on one model and target: it works, or the reasons and the closest alternative."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from backend.domain.frozen import Frozen
from backend.domain.machine.targets import Target
from backend.domain.model.facts import ModelFacts
from backend.domain.planner import engine_fit
from backend.domain.planner.engine_fit import EngineFit
from backend.domain.recipe import step_words
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.rules import catalog_filter as catalog
from backend.domain.rules import check
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from backend.service.machines import targets
from backend.service.models import catalog_sync
from backend.service.workspace import Workspace

CHECKS_CACHED = 512
"""Models whose checks on one target are kept: a few times the published ones."""


class TechniqueCheck(Frozen):
    """`reasons` is empty where it works; `nearest` names the steps of the nearest valid recipe."""

    kind: str
    """The word for it in filters and documents: `awq`, `ngram`."""
    title: str
    technique: str
    method: str | None
    works: bool
    reasons: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    nearest: str | None = None
    brief: str = ""
    """The first reason alone, as several techniques share it."""
    kernel: str = ""
    """The kernel that serves the quantized weights, if the technique works."""
    options: str = ""
    """The options with which it works, if they are not the usual ones: `group size 64`."""

    @property
    def title_with_options(self) -> str:
        """`AWQ 4-bit (group size 64)`."""
        return f"{self.title} ({self.options})" if self.options else self.title


def kind_titles() -> dict[str, str]:
    """Kind -> title, one a row of the capability table and in its order."""
    return {
        catalog.technique_kind(technique, method, engine): step_words.technique_title(technique, method, engine)
        for technique, method, engine, _ in supported()
    }


def technique_of(kind: str) -> str:
    """`quantize` of `awq`."""
    return next(
        technique
        for technique, method, engine, _ in supported()
        if catalog.technique_kind(technique, method, engine) == kind
    )


def check_all(workspace: Workspace, model: ModelFacts, target: str = "local") -> list[TechniqueCheck]:
    """One a row of the capability table, in its order, with the nearest recipe that works. Raises InvalidRecipe for an
    unknown target."""
    draft = catalog_sync.find_draft(workspace, model)
    facts = catalog_sync.facts_on(targets.find(workspace, target), model, draft)
    return _checks(model, lambda recipe: decide(workspace, model, recipe, facts))


def decide(workspace: Workspace, model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Verdict:
    """The verdict with the nearest valid recipe; where none is valid there, with the cheapest instance on which this
    one is."""
    verdict = check.check_recipe(model, recipe, facts)
    if verdict.valid or verdict.suggestion is not None:
        return verdict
    there = cheapest_target(workspace, model, recipe, facts.draft, managed=facts.place == "managed")
    return verdict.model_copy(update={"suggestion": recipe, "suggestion_target": there.name}) if there else verdict


def cheapest_target(
    workspace: Workspace, model: ModelFacts, chosen: Recipe, draft: ModelFacts | None, *, managed: bool = False
) -> Target | None:
    """The instance with the lowest published price on which the recipe is valid: the nearest where nothing else is
    valid."""
    places = [place for place in targets.hardwares(workspace).targets(managed) if place.price_per_hour is not None]
    ranked = sorted(places, key=lambda place: place.price_per_hour or 0.0)
    return next((it for it in ranked if check.is_valid(model, chosen, targets.rule_facts(it, model, draft))), None)


def check_quickly(workspace: Workspace, model: ModelFacts, where: Target) -> tuple[TechniqueCheck, ...]:
    """Like `checks`, without the search for what is nearest: for lists of many models."""
    return _check_facts(model, catalog_sync.facts_on(where, model, catalog_sync.find_draft(workspace, model)))


@lru_cache(maxsize=CHECKS_CACHED)
def _check_facts(model: ModelFacts, facts: TargetFacts) -> tuple[TechniqueCheck, ...]:
    """Kept, since a list asks the same at every look at it."""
    return tuple(_checks(model, lambda recipe: check.check_recipe(model, recipe, facts, suggest=False)))


def original_fits(model: ModelFacts, where: Target) -> bool:
    """Tell whether an engine serves the unchanged model on that target."""
    return _fits(model, catalog_sync.facts_on(where, model, None))


@lru_cache(maxsize=CHECKS_CACHED)
def _fits(model: ModelFacts, facts: TargetFacts) -> bool:
    return engine_fit.fits_any(model, facts)


def list_engine_fits(workspace: Workspace, model: ModelFacts, target: str = "local") -> list[EngineFit]:
    """Return the engines that run on that target's hardware, with the unchanged model. Raises InvalidRecipe for an
    unknown target."""
    return engine_fit.engine_fits(model, catalog_sync.facts_on(targets.find(workspace, target), model, None))


def _checks(model: ModelFacts, decided: Callable[[Recipe], Verdict]) -> list[TechniqueCheck]:
    """One a row of the capability table, in its order. `decided`: the verdict on a recipe that is that row alone, in
    groups that divide the model."""
    steps, results = catalog.technique_recipes(), []
    for technique, method, engine, _ in supported():
        kind = catalog.technique_kind(technique, method, engine)
        recipe = with_dividing_group(model, steps[kind])
        verdict = decided(recipe)
        # the first of each rule
        reasons = list({reason.rule: reason for reason in reversed(verdict.reasons)}.values())[::-1]
        results.append(
            TechniqueCheck(
                kind=kind,
                title=step_words.technique_title(technique, method, engine),
                technique=technique,
                method=method,
                works=verdict.valid,
                nearest=_nearest_text(verdict),
                reasons=tuple(reason.message for reason in reasons),
                sources=tuple(reason.source for reason in reasons),
                brief=reasons[0].short if reasons else "",
                options=_option_words(recipe, steps[kind]) if verdict.valid else "",
                kernel=next((step.kernel for step in verdict.plan.steps if step.kernel), "") if verdict.plan else "",
            )
        )
    return results


def _option_words(recipe: Recipe, usual: Recipe) -> str:
    """Return the group size where it is not the usual one of the technique."""
    step = recipe.step("quantize")
    return f"group size {step.group_size}" if isinstance(step, Quantize) and recipe != usual else ""


def _nearest_text(verdict: Verdict) -> str | None:
    """The steps of the nearest valid recipe, and where it is for if not for the target that was asked about."""
    suggestion = verdict.suggestion
    if suggestion is None:
        return None
    steps = ", ".join(map(step_words.step_line_with_options, suggestion.steps))
    serving = suggestion.serving.model_dump(exclude_defaults=True)
    steps += "".join(f", {name} {value}" for name, value in serving.items()) if steps else ""
    on = f" on {verdict.suggestion_target}" if verdict.suggestion_target else ""
    return f"{steps or 'the original, unchanged'}{on}"
