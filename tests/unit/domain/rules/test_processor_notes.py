"""What the plan says of a processor's instruction sets, by method and shapes."""

from __future__ import annotations

import pytest

from backend.catalog.bundled import models
from backend.domain.recipe import recipe
from backend.domain.rules import check, kernel_rules, processor_notes
from backend.domain.rules.target_facts import TargetFacts


@pytest.mark.parametrize(
    ("method", "features", "reported"),
    [
        ("awq", ("avx512_vnni", "amx_int8", "amx_bf16"), processor_notes.FOUR_AMX),
        ("awq", ("avx512_vnni", "avx512_bf16"), processor_notes.FOUR_SLOW),
        ("w8a8", ("amx_int8",), processor_notes.EIGHT_AMX),
        ("smoothquant", ("avx512_vnni",), processor_notes.EIGHT_VNNI),
        ("w8a8", ("avx2",), processor_notes.EIGHT_NONE),
    ],
)
def test_the_plan_says_what_the_instruction_set_gives(method: str, features: tuple[str, ...], reported: str) -> None:
    card = models.card("starter")
    assert card is not None
    chosen = recipe.read({"steps": [{"quantize": {"method": method}}]})
    plan = check.check_recipe(card, chosen, TargetFacts(features=features)).plan
    unknown = check.check_recipe(card, chosen, TargetFacts()).plan
    assert plan is not None and unknown is not None and reported in plan.notes and reported not in unknown.notes
    odd = card.model_copy(update={"vocabulary": 4096, "intermediate_size": 1544})
    assert (
        processor_notes.processor_note(odd, recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]}), ("amx_int8",))
        == processor_notes.EIGHT_ODD
    )


@pytest.mark.parametrize(
    ("activations", "dtype", "warned"),
    [("static", "auto", True), ("static", "float32", False), ("dynamic", "auto", False)],
)
def test_static_scales_ask_for_float32_without_8_bit_instructions(activations: str, dtype: str, warned: bool) -> None:
    card = models.card("starter")
    assert card is not None
    step = {"quantize": {"method": "w8a8", "activations": activations}}
    chosen = recipe.read({"steps": [step], "serving": {"dtype": dtype}})
    plan = check.check_recipe(card, chosen, TargetFacts(features=("avx2",))).plan
    assert plan is not None
    assert any(processor_notes.EIGHT_STATIC in note for note in plan.notes) is warned
    newer = check.check_recipe(card, chosen, TargetFacts(features=("avx512_vnni",))).plan
    assert newer is not None and not any(processor_notes.EIGHT_STATIC in note for note in newer.notes)


@pytest.mark.parametrize("step", [{"method": "awq"}, {"method": "gptq"}, {"method": "rtn", "group_size": 32}])
def test_4_bits_are_not_served_by_vllms_build_without_avx512(step: dict[str, object]) -> None:
    card = models.card("starter")
    assert card is not None
    chosen = recipe.read({"steps": [{"quantize": step}]})
    old, newer, unknown = (
        kernel_rules.find_unserved_format(card, chosen, TargetFacts(features=features))
        for features in (("avx2",), ("avx2", "avx512f"), None)
    )
    assert old is not None and "without AVX-512" in old and newer is None and unknown is None
    plan = check.check_recipe(card, chosen, TargetFacts(features=("avx2",))).plan
    assert plan is not None and f"{old}." in plan.notes and processor_notes.FOUR_SLOW not in plan.notes
    assert kernel_rules.kernel_title(card, chosen, TargetFacts(features=("avx2",)), 1) == ""
    assert kernel_rules.kernel_title(card, chosen, TargetFacts(features=("avx512f",)), 1)
    eight = recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]})
    assert kernel_rules.find_unserved_format(card, eight, TargetFacts(features=("avx2",))) is None


@pytest.mark.parametrize(
    ("serving", "features", "warned"),
    [
        ({}, ("avx2",), True),
        ({"dtype": "float32"}, ("avx2",), False),
        ({}, ("avx2", "avx512f"), False),
    ],
)
def test_emulated_16_bit_products_are_told(serving: dict[str, str], features: tuple[str, ...], warned: bool) -> None:
    card = models.card("starter")
    assert card is not None
    chosen = recipe.read({"steps": [{"compile": {}}], "serving": serving})
    plan = check.check_recipe(card, chosen, TargetFacts(features=features)).plan
    assert plan is not None and (processor_notes.HALF_EMULATED in plan.notes) == warned
