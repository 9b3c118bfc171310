"""What the rules say of pruning by a library: alone it may, in one pass with quantization only the native engine
does."""

from __future__ import annotations

from typing import Any

from backend.catalog.bundled import models
from backend.domain.recipe import recipe
from backend.domain.rules import check
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts


def checked(*steps: dict[str, Any]) -> Verdict:
    return check.check_recipe(models.card("starter"), recipe.read({"steps": list(steps)}), TargetFacts())


def test_a_library_prunes_alone_and_the_plan_says_who_does_it() -> None:
    verdict = checked({"prune": {"method": "sparsegpt", "pattern": "2:4", "engine": "llm-compressor"}})
    assert verdict.plan is not None
    assert [(step.technique, step.engine) for step in verdict.plan.steps] == [("prune", "llm-compressor")]


def test_magnitude_is_the_native_engines_alone_and_the_nearest_recipe_says_so() -> None:
    verdict = checked({"prune": {"method": "magnitude", "engine": "llm-compressor"}})
    assert [reason.rule for reason in verdict.reasons] == ["capability"]
    assert verdict.suggestion == recipe.read({"steps": [{"prune": {"method": "magnitude"}}]})


def test_a_library_is_refused_in_one_pass_with_the_sentence_once() -> None:
    both = "llm-compressor"
    verdict = checked({"prune": {"method": "wanda", "engine": both}}, {"quantize": {"method": "w8a8", "engine": both}})
    assert [reason.rule for reason in verdict.reasons] == ["library"]
    assert "Only the native engine prunes and quantizes in one pass" in verdict.reasons[0].message
    mixed = checked({"prune": {"method": "wanda"}}, {"quantize": {"method": "awq", "engine": "autoawq"}})
    assert "leave out `engine: autoawq`" in mixed.reasons[0].message
