"""The options of formats in the form: only those choices that a method has, and a mixture's own for a mixture alone."""

from __future__ import annotations

import pytest

from app.builder import recipe_options
from backend.domain.recipe.recipe import Quantize, Recipe


def choices(step: Quantize, name: str, *, experts: bool = False) -> tuple[object, ...] | None:
    shown = {option.name: option.choices for option in recipe_options.shown_options(step, experts=experts)}
    return shown.get(name)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("nvfp4", (None, "dynamic", "none")),
        ("fp8", (None, "dynamic", "static")),
        ("w8a8", (None, "dynamic", "static")),
        ("mxfp4", None),
        ("fp8_block", None),
    ],
)
def test_activations_have_the_choices_of_the_method(method: str, expected: tuple[object, ...] | None) -> None:
    assert choices(Quantize(method=method), "activations") == expected


@pytest.mark.parametrize("method", ["fp8_block", "mxfp8", "w4a8_fp8", "nvfp4", "mxfp4"])
def test_a_format_leaves_no_group_size_to_choose(method: str) -> None:
    step = Quantize(method=method)
    assert all(choices(step, name) is None for name in ("group_size", "bits", "symmetric", "format", "target_bits"))


def test_a_form_outside_of_experts_is_shown_for_a_mixture_alone() -> None:
    step = Quantize(method="nvfp4")
    assert choices(step, "outside_experts") is None
    offered = choices(step, "outside_experts", experts=True)
    assert offered is not None and {None, "16-bit", "fp8", "fp8_block"} <= set(offered)
    # What a recipe says is shown for any model, so that it can be taken out.
    assert choices(Quantize(method="awq", outside_experts="fp8"), "outside_experts") is not None
    assert choices(Quantize(method="kv_cache"), "outside_experts", experts=True) is None


def test_another_method_drops_what_it_does_not_have() -> None:
    recipe = Recipe(steps=(Quantize(method="nvfp4", activations="none", outside_experts="fp8"),))
    changed = recipe_options.with_setting(recipe, 0, "method", "fp8").steps[0]
    assert isinstance(changed, Quantize)
    assert (changed.activations, changed.outside_experts) == (None, None)
    awq = recipe_options.with_setting(recipe, 0, "method", "awq").steps[0]
    assert isinstance(awq, Quantize) and awq.outside_experts == "fp8"
