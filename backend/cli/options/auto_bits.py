"""`--auto-bits target_bits=4.5`: writes mixed-precision options into a recipe's quantize step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backend.domain.errors import InvalidRecipe
from backend.domain.recipe import recipe as domain
from backend.domain.recipe.methods import MIXED
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.service.plans import recipe_files

DEFAULT = "awq"
AutoBits = Annotated[
    str | None,
    typer.Option(
        metavar="target_bits=BITS[,eight_bits=int8|w8a8]",
        help="Give each group of linears (q, k and v; gate and up; ...) 4, 8 or 16 bits by its measured loss, at "
        "most BITS bits per weight on average, scales included. Changes the recipe's quantize step (method "
        "rtn, awq or gptq), like `target_bits: 4.5` there; without --recipe the recipe is awq. eight_bits: "
        "weights only (int8, for GPUs) or activations too (w8a8, also for processors).",
    ),
]


def choose_recipe(recipe: Path | None, auto_bits: str | None) -> Recipe:
    """Return the recipe to run. Raises InvalidRecipe."""
    if auto_bits is None:
        if recipe is None:
            raise InvalidRecipe(
                "Name a recipe with --recipe, or ask for average bits with --auto-bits target_bits=4.5."
            )
        return recipe_files.read_file(recipe)
    return _with_auto_bits(recipe_files.read_file(recipe or Path(DEFAULT)), _read(auto_bits))


def _read(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (side.strip() for side in part.partition("="))
        if name not in MIXED or not value or name in options:
            raise InvalidRecipe(
                f"--auto-bits takes target_bits=4.5, optionally with ,eight_bits=w8a8, not `{part.strip()}`."
            )
        options[name] = value
    if "target_bits" not in options:
        raise InvalidRecipe("--auto-bits needs a budget: add target_bits=4.5.")
    return options


def _with_auto_bits(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    if not any(isinstance(step, Quantize) for step in recipe.steps):
        raise InvalidRecipe(
            f"--auto-bits needs a quantize step, and {recipe.name} has none: add `quantize: {{method: awq}}`."
        )
    document = recipe.model_dump(mode="json")
    for step in document["steps"]:
        if "quantize" in step:
            step["quantize"] |= options
    return domain.read({**document, "name": f"{recipe.name} at {options['target_bits']} bits"[:80]})
