"""The list of techniques says what Build says, and the nearest recipe names the option that differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.model.facts import ModelCard
from backend.domain.recipe import step_words
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.rules.catalog_filter import technique_recipes
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.service import Workspace
from backend.service.machines import targets
from backend.service.models import catalog_sync, models, technique_checks
from backend.service.plans import cases
from tests.homes import open_home


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


@pytest.fixture
def odd(workspace: Workspace) -> ModelCard:
    """A model whose matrices have 576 and 1536 inputs, as SmolLM2's: groups of 128 do not divide them, 64 do."""
    card = models.resolve_facts(workspace, "starter")
    assert isinstance(card, ModelCard)
    return card.model_copy(
        update={"hidden_size": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate_size": 1536}
    )


def test_the_nearest_names_the_option_that_differs(workspace: Workspace, odd: ModelCard) -> None:
    """ "AWQ no, nearest AWQ": only the group size differs."""
    facts = catalog_sync.facts_on(targets.find(workspace, "local"), odd, None)
    verdict = technique_checks.decide(workspace, odd, technique_recipes()["awq"], facts)
    assert verdict.suggestion is not None
    assert step_words.step_line_with_options(verdict.suggestion.steps[0]) == "quantize awq (group_size 64)"


def test_a_technique_works_if_a_group_size_divides_the_model(workspace: Workspace, odd: ModelCard) -> None:
    checks = {check.kind: check for check in technique_checks.check_all(workspace, odd)}
    assert checks["awq"].works and checks["awq"].title_with_options.endswith(" (group size 64)")
    added = [addition for addition in cases.additions(workspace, odd, Recipe(), None) if addition.reason is None]
    assert Quantize(method="awq", group_size=64) in [addition.step for addition in added], "Build adds what works"
    assert checks["w8a8"].works and checks["w8a8"].title_with_options == checks["w8a8"].title


def test_on_this_machine_every_technique_has_the_verdict_of_build(workspace: Workspace) -> None:
    card = models.resolve_facts(workspace, "starter")
    for check in technique_checks.check_all(workspace, card):
        case = cases.resolve(workspace, card, with_dividing_group(card, technique_recipes()[check.kind]))
        assert case.verdict.valid == check.works, check.title
    adaptive = next(check for check in technique_checks.check_all(workspace, card) if check.kind == "ngram_adaptive")
    assert adaptive.works
