"""Names and titles of recipes say the bits that are made."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.recipe.recipe import read
from backend.domain.recipe.step_words import recipe_name, recipe_title


@pytest.mark.parametrize(
    ("method", "options", "name", "title"),
    [
        ("gptq", {}, "GPTQ 4-bit", "INT4 (GPTQ)"),
        ("gptq", {"bits": 3}, "GPTQ 3-bit", "INT3 (GPTQ)"),
        ("gptq", {"bits": 8}, "GPTQ", "INT8 (GPTQ)"),
        ("awq", {"target_bits": 5}, "AWQ 5-bit", "INT4 (AWQ), 5 bits on average"),
        ("slim_llm", {"bits": 3}, "SliM-LLM 3-bit", "INT3 mixed (SliM-LLM)"),
        ("bitnet", {}, "BitNet b1.58", "Ternary weights (BitNet b1.58)"),
        ("billm", {}, "BiLLM", "1 bit (BiLLM)"),
        ("w8a8", {}, "W8A8", "INT8 (W8A8)"),
    ],
)
def test_a_name_and_a_title_have_the_bits(method: str, options: dict[str, Any], name: str, title: str) -> None:
    recipe = read({"name": "mine", "steps": [{"quantize": {"method": method, **options}}]})
    assert (recipe_name(recipe), recipe_title(recipe)) == (name, title)
