"""`--auto-bits` puts its options into the recipe's quantize step, and says what it does not understand."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.cli.options import auto_bits
from backend.domain.errors import InvalidRecipe
from backend.domain.recipe.recipe import Quantize


def step(recipe: str | None, text: str) -> Quantize:
    change = auto_bits.choose_recipe(Path(recipe) if recipe else None, text).step("quantize")
    assert isinstance(change, Quantize)
    return change


def test_the_budget_goes_into_the_quantize_step_of_the_recipe_or_of_awq(tmp_path: Path) -> None:
    assert step(None, "target_bits=4.5") == Quantize(method="awq", target_bits=4.5)
    (tmp_path / "r.yaml").write_text("name: mine\nsteps:\n- quantize: {method: gptq, group_size: 64}\n")
    chosen = auto_bits.choose_recipe(tmp_path / "r.yaml", "target_bits=5, eight_bits=int8")
    assert chosen.name == "mine at 5 bits"
    assert chosen.step("quantize") == Quantize(method="gptq", group_size=64, target_bits=5, eight_bits="int8")


@pytest.mark.parametrize(
    ("recipe", "text", "message"),
    [
        (None, "bits=3", "not `bits=3`"),
        (None, "4.5", "not `4.5`"),
        (None, "eight_bits=w8a8", "needs a budget"),
        (None, "target_bits=4.5,target_bits=5", "not `target_bits=5`"),
        (None, "target_bits=few", "`steps.0.target_bits` of the recipe is wrong: it must be a number"),
        (None, "target_bits=nan", "is wrong: it must be a finite number"),
        (None, "target_bits=-1", "`steps.0.target_bits` of the recipe is wrong: it must be above 0"),
        ("ngram", "target_bits=5", "needs a quantize step, and ngram has none"),
        (None, None, "Name a recipe with --recipe"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(recipe: str | None, text: str | None, message: str) -> None:
    with pytest.raises(InvalidRecipe) as refused:
        auto_bits.choose_recipe(Path(recipe) if recipe else None, text)
    assert message in str(refused.value)
