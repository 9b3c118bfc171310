"""Sentences about the layers that lose most, for every technique."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.recipe.recipe import Recipe
from backend.present.charts.layer_errors import layer_errors
from backend.present.words import layer_summary

LINEARS = ("self_attn.q_proj", "mlp.down_proj")
HEAD = {"name": "lm_head", "why": "shared with the embedding"}
ROUTERS = [{"name": f"model.layers.{n}.mlp.gate", "why": "decides which experts see a token"} for n in range(2)]
QUANTIZE, PRUNE = {"technique": "quantize", "method": "gptq"}, {"technique": "prune", "method": "wanda"}


def recipe(*steps: dict[str, Any]) -> Recipe:
    return Recipe.model_validate({"steps": list(steps)})


def rows(*errors: float, **more: Any) -> list[dict[str, Any]]:
    """One error a layer, its second linear half as much again."""
    return [
        {"name": f"model.layers.{number}.{linear}", "relative_error": error * (1 + place / 2), **more}
        for number, error in enumerate(errors)
        for place, linear in enumerate(LINEARS)
    ]


@pytest.mark.parametrize(
    ("steps", "verbs"),
    [
        ([QUANTIZE], "quantized"),
        ([PRUNE], "pruned"),
        ([PRUNE, QUANTIZE], "pruned and quantized"),
        ([{"technique": "quantize", "method": "kv_cache"}], ""),
    ],
)
def test_what_was_done_is_in_the_title_of_the_chart(steps: list[dict[str, Any]], verbs: str) -> None:
    assert layer_summary.done(recipe(*steps)) == verbs
    figure = layer_errors(rows(0.1), "light", verbs)
    assert bool(figure["data"]) == bool(verbs)
    assert not verbs or figure["layout"]["title"]["text"].startswith(f"Error of each {verbs} linear")


def test_the_layer_that_stands_out_and_the_worst_linear_are_named() -> None:
    (message,) = layer_summary.sentences(recipe(QUANTIZE), rows(0.04, 0.08, 0.04), [])
    assert message == (
        "Layer 1 loses most: a relative error of 10.0 % on average, against 6.67 % over all layers. "
        "The worst is model.layers.1.mlp.down_proj with 12.0 %."
    )


def test_layers_that_lose_about_the_same() -> None:
    (message,) = layer_summary.sentences(recipe(QUANTIZE), rows(0.04, 0.041), [])
    assert message.startswith("All 2 layers lose about the same: a relative error of 5.06 % on average.")


def test_rows_of_whole_layers_are_told_alike() -> None:
    whole = [{"name": f"model.layers.{n}", "relative_error": error} for n, error in enumerate([0.1, 0.1, 0.4])]
    (message,) = layer_summary.sentences(recipe(QUANTIZE), whole, [])
    assert message.startswith("Layer 2 loses most: a relative error of 40.0 % on average, against 20.0 %")


def test_zeros_and_what_stayed_in_16_bit_are_told_with_reasons() -> None:
    sentences = layer_summary.sentences(recipe(PRUNE, QUANTIZE), rows(0.2, 0.2, zeros=0.5), [HEAD, *ROUTERS])
    assert sentences[1] == "50.0 % of each pruned linear's weights are zeros; zeros are stored and save no space."
    assert sentences[2] == (
        "Left in 16 bits: lm_head (shared with the embedding); "
        "model.layers.0.mlp.gate and 1 other (decides which experts see a token)."
    )
    pruned = layer_summary.sentences(recipe(PRUNE), rows(0.2, 0.2, zeros=0.5), [HEAD])
    assert pruned[2] == "Not pruned: lm_head (shared with the embedding)."
    uneven = rows(0.2, zeros=0.4) + rows(0.2, zeros=0.6)
    assert "(40.0 % to 60.0 %)" in " ".join(layer_summary.sentences(recipe(PRUNE), uneven, []))


def test_a_cache_alone_changes_no_weight() -> None:
    (message,) = layer_summary.sentences(
        recipe({"technique": "quantize", "method": "kv_cache"}), rows(0.0, 0.0), [HEAD]
    )
    assert message.startswith("No weight was changed: keys and values are rounded while serving")
