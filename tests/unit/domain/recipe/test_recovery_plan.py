"""Recovery in a recipe, a plan and an estimate: written and read, refused where it cannot be, and in words."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as graph
import pytest

from app.builder import recipe_options as recipe_options
from backend.catalog.bundled import models
from backend.domain.errors import InvalidRecipe
from backend.domain.machine.device import GIB, Device
from backend.domain.model.shapes import sizes
from backend.domain.needs import recovery_needs
from backend.domain.planner.estimate import estimate_needs
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Prune, Recipe
from backend.domain.recipe.recovery import Recover, end_sentence, gain_sentence, title
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.present.charts import alt_text
from backend.present.charts.curves.recovery import BEST, TRAINING, VALIDATION, loss_curve
from backend.service.plans import recipe_files

CARD: Any = models.card("starter")
POINTS: list[dict[str, Any]] = [
    {"step": 0, "validation": 0.2, "training": None},
    {"step": 5, "validation": 0.1, "training": 0.18},
    {"step": 10, "validation": 0.15, "training": 0.08},
]
DONE: dict[str, Any] = {"steps": 10, "asked": {"steps": 40}, "best_step": 5, "improved": True, "stopped": "patience"}


def with_recovery(recover: Any = True) -> Recipe:
    return recipe.read({"name": "r", "steps": [{"prune": {"method": "wanda", "recover": recover}}]})


def recover_of(chosen: Recipe) -> Recover | None:
    step = chosen.step("prune")
    assert isinstance(step, Prune)
    return step.recover


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        (True, "recover: true"),
        ({}, "recover: true"),
        ({"rank": 4, "teacher": False}, "recover: {rank: 4, teacher: false}"),
        ({"minutes": 20, "answers": True}, "recover: {minutes: 20, answers: true}"),
        ({"minutes": 20, "steps": 100}, "recover: {steps: 100, minutes: 20}"),
    ],
)
def test_it_is_written_as_short_as_it_can_be_and_read_back(requested: Any, text: str) -> None:
    chosen = with_recovery(requested)
    assert text in recipe_files.write_text(chosen)
    assert recipe_files.read_text(recipe_files.write_text(chosen)) == chosen
    assert Recipe.model_validate_json(chosen.model_dump_json()) == chosen


def test_off_it_is_not_in_the_recipe_and_the_hash_is_that_of_before() -> None:
    for off in (False, None):
        assert recover_of(with_recovery(off)) is None
        assert with_recovery(off).hash == recipe.read({"steps": [{"prune": {"method": "wanda"}}]}).hash
    assert with_recovery().hash != with_recovery(None).hash


def test_the_form_switches_it_and_sets_what_is_below() -> None:
    off = with_recovery(None)
    assert "recover.rank" not in {option.name for option in recipe_options.shown_options(off.steps[0])}
    on = recipe_options.with_setting(off, 0, "recover", True)
    assert recover_of(on) == Recover()
    names = [option.name for option in recipe_options.shown_options(on.steps[0]) if option.name.startswith("recover.")]
    assert names == [f"recover.{name}" for name in Recover.model_fields]
    assert [recipe_options.value(on, 0, name) for name in names] == list(Recover().all_options().values())
    changed = recipe_options.with_setting(recipe_options.with_setting(on, 0, "recover.rank", 16), 0, "sparsity", 0.4)
    assert recover_of(changed) == Recover(rank=16)
    timed = recipe_options.with_setting(on, 0, "recover.minutes", 20)
    assert recover_of(timed) == Recover(minutes=20) and recover_of(timed) != Recover(minutes=20, steps=100)
    assert recover_of(recipe_options.with_setting(timed, 0, "recover.minutes", None)) == Recover()
    assert recipe_options.value(changed, 0, "recover") is True
    assert recover_of(recipe_options.with_setting(changed, 0, "recover", False)) is None
    with pytest.raises(InvalidRecipe, match=r"recover\.steps"):
        recipe_options.with_setting(on, 0, "recover.steps", None)


@pytest.mark.parametrize(
    ("recover", "words"),
    [
        ({"rank": 0}, r"recover\.rank"),
        ({"ranks": 8}, "ranks` of the recipe is unknown"),
        ("often", "is true, or a mapping"),
        ({"learning_rate": float("nan")}, r"recover\.learning_rate"),
        ({"steps": 1e9}, r"recover\.steps"),
        ({"divergence": "reverse", "teacher": False}, "compares with the original, which `teacher: false` leaves out"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_sentence(recover: Any, words: str) -> None:
    with pytest.raises(InvalidRecipe, match=words):
        with_recovery(recover)


def _facts(memory: int) -> TargetFacts:
    return TargetFacts(device=Device("this machine's processor", "cpu", 1, memory))


def test_recovery_is_refused_where_the_model_does_not_fit_and_a_fit_is_suggested() -> None:
    chosen = with_recovery({"batch": 16})  # which needs more memory than the server does
    needed = recovery_needs.memory_bytes(CARD, chosen)
    assert check.check_recipe(CARD, chosen, _facts(needed)).valid
    verdict = check.check_recipe(CARD, chosen, _facts(needed - 1))
    assert [reason.rule for reason in verdict.reasons] == ["recovery-memory"]
    assert verdict.reasons[0].message.startswith("Recovery holds the whole model in memory, about ")
    assert verdict.suggestion == with_recovery(None)


SLOW = Device("this machine's processor", "cpu", 1, 64 * GIB, flops=1e9)


def test_minutes_that_end_before_a_first_result_are_refused_with_enough_of_them() -> None:
    slow = TargetFacts(device=SLOW)
    short = with_recovery({"minutes": 1})
    least = recovery_needs.least_minutes(CARD, short, SLOW, Recover(minutes=1))
    verdict = check.check_recipe(CARD, short, slow)
    assert [reason.rule for reason in verdict.reasons] == ["recovery-minutes"]
    assert f"takes at least {least:.1f} minutes" in verdict.reasons[0].message
    assert verdict.suggestion == with_recovery({"minutes": math.ceil(least)})
    assert check.check_recipe(CARD, with_recovery({"minutes": math.ceil(least)}), slow).valid
    assert check.check_recipe(CARD, short, TargetFacts()).valid  # its speed is not known


def test_minutes_count_the_first_answers_that_the_original_writes() -> None:
    def least(device: Device | None, **options: Any) -> float:
        chosen = Recover(minutes=1, **options)
        return recovery_needs.least_minutes(CARD, with_recovery({"minutes": 1, **options}), device, chosen)

    samples, length = recovery_needs.calibration_size(with_recovery(True))
    parts = sizes(CARD)
    forward_s = 2.0 * (parts.active_linears + parts.embedding) * length / 1e9
    written = least(SLOW, answers=True) - least(SLOW)
    assert written == pytest.approx(min(32, samples) * forward_s / 60)
    # One sequence is written token by token: each reads the whole model, of which little memory's bandwidth makes more.
    narrow = SLOW._replace(bandwidth=1e6)
    read = least(narrow, answers=True) - least(narrow)
    assert read == pytest.approx(4 * CARD.parameters * length * 3 / 4 / 1e6 / 60) and read > written
    assert least(None, answers=True) == 0
    # The refusal names what would do, and what else could be left out.
    short = with_recovery({"minutes": math.ceil(least(SLOW)), "answers": True})
    verdict = check.check_recipe(CARD, short, TargetFacts(device=SLOW))
    assert [reason.rule for reason in verdict.reasons] == ["recovery-minutes"]
    assert verdict.reasons[0].message.endswith("or more, a smaller `batch`, or `answers: false`.")
    enough = with_recovery({"minutes": math.ceil(least(SLOW, answers=True)), "answers": True})
    assert verdict.suggestion == enough and check.check_recipe(CARD, enough, TargetFacts(device=SLOW)).valid


def test_steps_are_counted_in_16_bits_and_validations_in_32() -> None:
    half, full = recovery_needs.operations(CARD, with_recovery(True), Recover())
    more_half, more_full = recovery_needs.operations(CARD, with_recovery({"steps": 200}), Recover(steps=200))
    assert more_half == 2 * half and full < more_full < 2 * full
    assert recovery_needs.operations(CARD, with_recovery(True), Recover(teacher=False))[0] == half
    assert recovery_needs.seconds(CARD, with_recovery(True), half, full, Recover()) == pytest.approx(2)


def test_answers_take_time_beside_the_steps() -> None:
    def seconds(**options: Any) -> float:
        return recovery_needs.seconds(CARD, with_recovery(options or True), 1e9, 1e9, Recover(**options))

    assert seconds(answers=True) > seconds()


def test_minutes_bound_the_time_that_is_predicted() -> None:
    def seconds(**options: Any) -> float:
        return recovery_needs.seconds(CARD, with_recovery(options or True), 1e9, 1e9, Recover(**options))

    assert seconds(minutes=3) == 180
    assert seconds(minutes=10_000, steps=100) < seconds()
    words = title(Recover(minutes=3, answers=True))
    assert words.endswith("3 minutes of rank 8, taught by the original on its own answers")


def test_models_made_of_experts_are_refused() -> None:
    experts = CARD.model_copy(update={"model_type": "mixtral", "experts": 8, "experts_per_token": 2})
    verdict = check.check_recipe(experts, with_recovery(), _facts(10_000 * GIB))
    assert [reason.rule for reason in verdict.reasons] == ["recovery-experts"]


def test_more_of_anything_needs_more_memory_and_no_recovery_needs_none() -> None:
    def memory_of(**options: Any) -> int:
        return recovery_needs.memory_bytes(CARD, with_recovery(options or True))

    assert memory_of(teacher=False) < memory_of() < min(memory_of(rank=64), memory_of(batch=8))
    last_states = 256 * 512 * CARD.hidden_size
    assert memory_of() - memory_of(teacher=False) == 4 * (CARD.parameters + last_states)
    assert recovery_needs.memory_bytes(CARD, with_recovery(None)) == 0
    plain, recovering = estimate_needs(CARD, with_recovery(None)), estimate_needs(CARD, with_recovery())
    assert recovering.memory_bytes == memory_of() > plain.memory_bytes
    assert recovering.disk_bytes == plain.disk_bytes + 2 * CARD.weights_bytes
    assert recovery_needs.FORMULA in recovering.formulas["memory"]
    assert recovery_needs.FORMULA not in plain.formulas["memory"]


def test_the_curve_has_its_words_and_rings_what_is_kept() -> None:
    figure = loss_curve(POINTS, "kl", best_step=5)
    assert [trace["name"] for trace in figure["data"]] == [VALIDATION, TRAINING, BEST]
    message = alt_text.alt(figure)
    assert "KL divergence (nats/token)" in message
    assert "Validation: 3 points from 0.100 at step 5 to 0.200 at step 0" in message
    assert "Best: 0.100 at step 5" in message
    lines = alt_text.csv(figure).splitlines()
    assert len(lines) == 1 + 3 + 2 + 1
    assert loss_curve([], "kl")["data"] == []
    for drawn in (figure, loss_curve([], "kl")):  # with plotly's own check of every property, which screens leave out
        assert graph.Figure(drawn).layout.title.text == "Loss during recovery"
    assert "Next-token loss" in alt_text.alt(loss_curve(POINTS[:1], "next token", "dark"))


def test_what_it_gained_is_said_plainly() -> None:
    def quality(*perplexities: float) -> dict[str, dict[str, float]]:
        return {
            name: {"perplexity": each}
            for name, each in zip(("original", "pruned", "recovered"), perplexities, strict=True)
        }

    assert gain_sentence(quality(40, 50, 44)).endswith(
        "44.00 after recovery: recovery won back 60% of what pruning cost."
    )
    assert gain_sentence(quality(40, 50, 51)).endswith("recovery did not help.")
    assert gain_sentence(quality(40, 39, 38)) == (
        "Perplexity is 40.00 before pruning, 39.00 after pruning and 38.00 after recovery."
    )
    assert end_sentence(DONE).startswith("It stopped early, at step 10 of 40,")
    assert "the weights of step 5" in end_sentence(DONE)
    assert end_sentence({**DONE, "stopped": "steps", "improved": False}).endswith(
        "so the pruned weights are kept as they were."
    )
