"""The bundled recipes: one for everything that the capability table offers, each valid on the starter, each with a
sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.catalog.bundled import models
from backend.domain.recipe import methods
from backend.domain.recipe.capability_table import _SUPPORTED
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.domain.recipe.speculation import OFFERED
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.service.plans import recipe_files

EVERY = {name: recipe_files.read_file(Path(name)) for name in recipe_files.bundled_names()}


def keys(recipe: Recipe) -> set[tuple[str, str | None, str]]:
    return {(step.technique, getattr(step, "method", None), getattr(step, "engine", "native")) for step in recipe.steps}


def values(field: str) -> set[Any]:
    steps = [recipe.step("quantize") for recipe in EVERY.values()]
    return {getattr(step, field) for step in steps if isinstance(step, Quantize)}


def test_everything_that_can_be_done_has_a_recipe_to_start_from() -> None:
    assert set().union(*map(keys, EVERY.values())) >= {
        key for key in _SUPPORTED if key[0] != "speculate" or key[1] in OFFERED
    }
    pruned = {(step.method, step.pattern) for each in EVERY.values() if isinstance(step := each.step("prune"), Prune)}
    assert pruned >= {(method, pattern) for method in methods.PRUNE for pattern in ("unstructured", "2:4", "4:8")}
    assert any(recipe.step("prune") and recipe.step("quantize") for recipe in EVERY.values())
    assert values("activations") >= {None, "static"} and values("format") == {"compressed-tensors", "autoawq"}
    assert values("act_order") >= {None, False} and True in values("awq_scales") and True in values("symmetric")
    assert "fp8" in values("kv_cache") and False in values("clip") and True in values("loss_weights")
    assert True in values("rotate")


def test_no_two_are_the_same() -> None:
    assert len({recipe.hash for recipe in EVERY.values()}) == len(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_each_is_valid_on_the_starter_and_says_what_it_is(name: str) -> None:
    card = models.card("starter")
    if name == "experts":  # the starter has none
        card = card.model_copy(update={"model_type": "mixtral", "experts": 8, "experts_per_token": 2})
    verdict = check.check_recipe(card, EVERY[name], TargetFacts(draft=card))
    assert verdict.valid, [reason.message for reason in verdict.reasons]
    sentence = recipe_files.describe(name)
    assert sentence.endswith(".") and 20 < len(sentence) < 130
