"""Recovery after quantization in a recipe, a plan and an estimate: written, read, refused, and in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from app.builder import recipe_options
from backend.catalog.bundled import models
from backend.domain.errors import InvalidRecipe
from backend.domain.machine.device import GIB, Device
from backend.domain.needs import recovery_needs
from backend.domain.planner.estimate import estimate_needs
from backend.domain.recipe import recipe
from backend.domain.recipe.methods import GROUP_SIZE, QUANTIZE
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.recipe.recovery import RecoverQuantized, end_sentence, gain_sentence
from backend.domain.recipe.step_words import plan_title, recipe_name
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.service.plans import recipe_files

CARD: Any = models.card("starter")
DONE: dict[str, Any] = {"steps": 10, "asked": {"steps": 40}, "best_step": 5, "improved": False, "stopped": "patience"}


def with_recovery(recover: Any = True, *others: Any, limits: Any = None, **options: Any) -> Recipe:
    step = {"quantize": {"method": "awq", "recover": recover, **options}}
    return recipe.read({"name": "r", "steps": [*others, step], "limits": limits or {}})


def recover_of(chosen: Recipe) -> RecoverQuantized | None:
    step = chosen.step("quantize")
    assert isinstance(step, Quantize)
    return step.recover


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        (True, "recover: true"),
        ({"learn": "weights", "minutes": 20}, "recover: {minutes: 20, learn: weights}"),
        ({"answers": True}, "recover: {answers: true}"),
    ],
)
def test_it_is_written_as_short_as_it_can_be_and_read_back(requested: Any, text: str) -> None:
    chosen = with_recovery(requested)
    assert text in recipe_files.write_text(chosen)
    assert recipe_files.read_text(recipe_files.write_text(chosen)) == chosen
    assert Recipe.model_validate_json(chosen.model_dump_json()) == chosen
    assert with_recovery(False).hash == recipe.read({"steps": [{"quantize": {"method": "awq"}}]}).hash


def test_what_only_a_pruned_model_learns_is_refused() -> None:
    with pytest.raises(InvalidRecipe, match=r"rank` of the recipe is unknown"):
        with_recovery({"rank": 8})
    with pytest.raises(InvalidRecipe, match=r"a mapping such as \{learn: scales, steps: 200\}"):
        with_recovery("often")


def test_the_form_switches_it_and_forgets_it_for_a_method_without_groups() -> None:
    on = recipe_options.with_setting(with_recovery(None), 0, "recover", True)
    names = [option.name for option in recipe_options.shown_options(on.steps[0]) if option.name.startswith("recover.")]
    assert names == [f"recover.{name}" for name in RecoverQuantized.model_fields]
    assert [recipe_options.value(on, 0, name) for name in names] == list(RecoverQuantized().all_options().values())
    learning = recipe_options.with_setting(on, 0, "recover.learn", "weights")
    assert recover_of(learning) == RecoverQuantized(learn="weights")
    assert recover_of(recipe_options.with_setting(learning, 0, "method", "gptq")) == RecoverQuantized(learn="weights")
    other = recipe_options.with_setting(learning, 0, "method", "w8a8")
    assert recover_of(other) is None
    assert "recover" not in {option.name for option in recipe_options.shown_options(other.steps[0])}


@pytest.mark.parametrize("method", [name for name in QUANTIZE if name not in GROUP_SIZE])
def test_methods_without_groups_are_refused(method: str) -> None:
    chosen = with_recovery(True, method=method)
    verdict = check.check_recipe(CARD, chosen, TargetFacts())
    assert any("recover" in reason.message for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (with_recovery(True, engine="llm-compressor"), "trains what the native engine stores"),
        (with_recovery(True, format="autoawq"), "leave out `format: autoawq`, or `recover`"),
        (with_recovery(True, target_bits=5.0), "`recover` trains one precision, and `target_bits` makes several"),
        (
            with_recovery(True, limits={"max_kl": 0.1, "fall_back": True}),
            "`limits.fall_back` makes several precisions, and `recover` trains one",
        ),
        (
            with_recovery({"learn": "weights"}, {"prune": {"method": "wanda"}}),
            "would not keep the zeros of the pruning: use `learn: scales`",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(chosen: Recipe, words: str) -> None:
    verdict = check.check_recipe(CARD, chosen, TargetFacts())
    assert any(words in reason.message for reason in verdict.reasons), verdict.reasons
    assert verdict.suggestion is not None and recover_of(verdict.suggestion) in {None, RecoverQuantized()}


def test_scales_may_be_learned_of_pruned_weights_that_were_recovered() -> None:
    both = with_recovery(True, {"prune": {"method": "wanda", "recover": True}})
    assert check.check_recipe(CARD, both, TargetFacts(device=Device("cpu", "cpu", 1, 64 * GIB))).valid
    assert len(recovery_needs.find_recoveries(both)) == 2


def test_minutes_that_end_before_a_first_result_are_refused_with_enough_of_them() -> None:
    slow = Device("this machine's processor", "cpu", 1, 64 * GIB, flops=1e9)
    short = with_recovery({"minutes": 1})
    least = math.ceil(recovery_needs.least_minutes(CARD, short, slow, RecoverQuantized(minutes=1)))
    verdict = check.check_recipe(CARD, short, TargetFacts(device=slow))
    assert [reason.rule for reason in verdict.reasons] == ["recovery-minutes"]
    assert verdict.suggestion == with_recovery({"minutes": least})


def test_weights_need_more_memory_than_scales_and_a_plan_counts_disk_and_text() -> None:
    def memory_of(recover: Any) -> int:
        return recovery_needs.memory_bytes(CARD, with_recovery(recover))

    assert memory_of(True) < memory_of({"learn": "weights"})
    assert memory_of(None) == 0
    plain, training = estimate_needs(CARD, with_recovery(None)), estimate_needs(CARD, with_recovery())
    assert training.memory_bytes == memory_of(True) > plain.memory_bytes
    assert training.disk_bytes == plain.disk_bytes + plain.weights_bytes
    assert "+ the quantized weights" in training.formulas["disk"]


def test_it_is_said_in_words() -> None:
    words = plan_title(with_recovery({"minutes": 3, "answers": True}).steps[0])
    assert words.endswith(
        ", then recovery of the scales in at most 3 minutes, taught by the original on its own answers"
    )
    assert [recipe_name(with_recovery(recover)) for recover in (None, True)] == ["AWQ 4-bit", "AWQ 4-bit recovered"]
    quality = {"original": {"kl_mean": 0.0}, "quantized": {"kl_mean": 0.1}, "recovered": {"kl_mean": 0.08}}
    assert gain_sentence(quality) == (
        "Mean KL divergence is 0.1000 after quantization and 0.0800 after recovery: recovery won back 20% of what "
        "quantization cost."
    )
    assert gain_sentence({**quality, "recovered": {"kl_mean": 0.2}}).endswith("recovery did not help.")
    assert end_sentence(DONE, "quantized").endswith(
        "No step was better than the quantized model, so the quantized weights are kept as they were."
    )
