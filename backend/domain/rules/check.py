"""Decides which recipe works on which model and target: (model, recipe, target) -> a plan, or every reason why not.

Pure and driven by tables: `capability_table` (our engines), `sagemaker_toolkit`, and the rules in `rules`.
`nearest_recipe` searches for the closest valid recipe. Every refusal names its rule and its source.
"""

from __future__ import annotations

from backend.domain.model.facts import ModelFacts
from backend.domain.recipe.recipe import ORIGINAL, Recipe
from backend.domain.rules import nearest_recipe as nearest
from backend.domain.rules import rules
from backend.domain.rules.plan import Verdict, make_plan
from backend.domain.rules.target_facts import TargetFacts


def is_valid(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> bool:
    """Return whether no rule refuses the recipe, without making the plan: for many models and targets."""
    return not rules.is_refused(model, recipe, facts)


def check_recipe(model: ModelFacts, recipe: Recipe, facts: TargetFacts, *, suggest: bool = True) -> Verdict:
    """Return the plan, or every reason why not with the nearest valid recipe. Without `suggest` the reasons alone."""
    reasons = rules.reasons(model, recipe, facts)
    if not reasons:
        return Verdict(plan=make_plan(model, recipe, facts))
    if not suggest:
        return Verdict(plan=None, reasons=reasons)
    suggestion, target = nearest.find_nearest(model, recipe, facts)
    if suggestion is None and facts.place != "neuron":  # not even the original: say why, where that is another rule
        known = {reason.rule for reason in reasons}
        reasons += tuple(reason for reason in rules.reasons(model, ORIGINAL, facts) if reason.rule not in known)
    return Verdict(plan=None, reasons=reasons, suggestion=suggestion, suggestion_target=target)
