"""What a rotation goes with, what it changes of the sizes, and what is suggested where it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.model.facts import ModelCard
from backend.domain.needs import job_duration, rotation, serving_memory
from backend.domain.planner import estimate, roofline
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

ROTATED: dict[str, Any] = {"quantize": {"method": "w8a8", "rotate": True}}


def read(*steps: Any, **fields: Any) -> Recipe:
    return recipe.read({"name": "r", "steps": list(steps), **fields})


def refused(model: ModelCard, chosen: Recipe, facts: TargetFacts | None = None) -> list[str]:
    verdict = check.check_recipe(model, chosen, facts or TargetFacts(draft=card()))
    return [reason.message for reason in verdict.reasons if reason.rule == "rotation"]


def test_a_llama_is_rotated() -> None:
    assert check.check_recipe(card(), read(ROTATED), TargetFacts()).valid


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "gemma2"}, "of type gemma2"),
        ({"model_type": "mixtral", "experts": 8, "experts_per_token": 2}, "a mixture of experts"),
        ({"outside_parameters": 10**6}, "a model of several parts"),
        ({"hidden_size": 100}, "Hadamard matrix of order 100"),
    ],
)
def test_other_models_are_refused_and_the_suggestion_has_no_rotation(fields: dict[str, Any], words: str) -> None:
    model = card(**fields)
    (message,) = refused(model, read(ROTATED))
    assert words in message
    suggestion = check.check_recipe(model, read(ROTATED), TargetFacts()).suggestion
    assert suggestion is not None and not getattr(suggestion.step("quantize"), "rotate", None)


@pytest.mark.parametrize(
    ("steps", "fields", "words"),
    [
        (({"prune": {"method": "wanda"}}, ROTATED), {}, "fill the zeros"),
        (({"quantize": {"method": "awq", "rotate": True, "recover": True}},), {}, "`recover` trains"),
        (({"quantize": {"method": "awq", "rotate": True, "target_bits": 5}},), {}, "one precision"),
        ((ROTATED, {"speculate": {"method": "eagle3", "draft": "/a/head"}}), {}, "reads the hidden state"),
    ],
)
def test_what_a_rotation_does_not_go_with(steps: tuple[Any, ...], fields: dict[str, Any], words: str) -> None:
    (message,) = refused(card(), read(*steps, **fields))
    assert words in message


def test_a_structured_pruning_goes_before_it() -> None:
    assert refused(card(), read({"prune": {"method": "depth"}}, ROTATED)) == []


def test_methods_that_take_none_say_who_does() -> None:
    verdict = check.check_recipe(card(), read({"quantize": {"method": "int8", "rotate": True}}), TargetFacts())
    assert any("takes no `rotate`, which is for" in reason.message for reason in verdict.reasons)


def test_a_tied_model_becomes_larger_by_one_head_and_is_no_slower_to_read() -> None:
    tied, chosen, plain = card(tied_embeddings=True), read(ROTATED), read({"quantize": {"method": "w8a8"}})
    head = 2 * tied.vocabulary * tied.hidden_size
    assert serving_memory.weights(tied, chosen).total - serving_memory.weights(tied, plain).total == head
    assert roofline.served_model(tied, chosen).traffic == roofline.served_model(tied, plain).traffic
    notes = check.check_recipe(tied, chosen, TargetFacts()).plan
    assert notes is not None and any("output head of its own" in note for note in notes.notes)
    # A model with a head of its own stays as large.
    untied = card(tied_embeddings=False)
    assert rotation.untied(untied, chosen) is untied


def test_the_job_takes_longer_and_needs_room_for_the_rotated_model() -> None:
    rotated, plain = (
        estimate.estimate_needs(card(), read(step)) for step in (ROTATED, {"quantize": {"method": "w8a8"}})
    )
    assert rotated.disk_bytes > plain.disk_bytes and "rotated" in rotated.formulas["disk"]
    assert "rotate" in job_duration.PHASES


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"method": "fp8"}, True),
        ({"method": "nvfp4"}, True),
        ({"method": "nvfp4", "activations": "none"}, False),
        ({"method": "w8a8"}, False),
    ],
)
def test_a_plan_says_with_which_methods_a_rotation_lost_more(options: dict[str, Any], warned: bool) -> None:
    for rotate in (True, False):
        plan = check.check_recipe(card(), read({"quantize": {**options, "rotate": rotate}}), TargetFacts()).plan
        assert plan is not None
        assert any("raised the mean KL" in note for note in plan.notes) == (warned and rotate)
