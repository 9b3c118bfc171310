"""Recipes as text: bundled ones and files, YAML in and out.

YAML is read strictly: safe types, no anchors or aliases, no key twice, nothing large. An alias lets a few lines stand
for billions of values, and a recipe never needs one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from backend import sandbox
from backend.domain.errors import InvalidRecipe
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.service import paths
from backend.settings import ASSETS

MAX_BYTES = 100_000
LONGEST_NAME = 250
"""Bytes; Linux takes 255 of a file's name, and `.yaml` may be added."""
BREAKS = frozenset("\x85\u2028\u2029\ufeff")
"""Line breaks to YAML: PyYAML writes them as they are and reads them back as something else."""


def read_file(path: Path) -> Recipe:
    """A recipe file, or a bundled recipe by its name. Raises InvalidRecipe, RequestError."""
    # 1. Find the file: a path, else a bundled name.
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InvalidRecipe(
            f"No file has a name as long as {path.name[:20]}...: give a YAML file or a bundled recipe's name."
        )
    bundled = ASSETS / "recipes" / f"{path.name.removesuffix('.yaml')}.yaml"
    paths.check_on_disk(path.resolve())
    actual = path if path.is_file() else bundled
    if not actual.is_file():
        names = ", ".join(bundled_names())
        raise InvalidRecipe(f"There is no recipe file {path}: give a YAML file, or one of {names}.")
    # 2. Read it within limits.
    if actual.stat().st_size > MAX_BYTES:
        raise InvalidRecipe(f"{path} has more than {MAX_BYTES // 1000} kB: a recipe has a few lines.")
    try:
        return read_text(actual.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidRecipe(f"{path} is not text: a recipe is a YAML file.") from None


def read_text(text: str) -> Recipe:
    """Parse YAML strictly. Raises InvalidRecipe naming line and column, or the wrong field."""
    return recipe.read(read_yaml(text))


def read_yaml(text: str, *, what: str = "recipe", most: int = MAX_BYTES) -> Any:
    """The document as plain data. `what` is what the sentences call it, `most` its characters.

    Raises InvalidRecipe naming line and column.
    """
    if len(text) > most:
        raise InvalidRecipe(f"The {what} has more than {most // 1000} kB: it needs a few lines.")
    try:
        return sandbox.read_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        advice = ": indent with spaces." if "'\\t'" in str(error.problem) else "."
        raise InvalidRecipe(f"The {what} is not valid YAML ({where}: {error.problem}){advice}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRecipe(f"The {what} is not valid YAML: {str(error).splitlines()[0][:200]}.") from None


def write_text(chosen: Recipe) -> str:
    """The recipe as YAML, defaults left out."""
    document = chosen.model_dump(mode="json") | {"steps": chosen.model_dump()["steps"]}  # JSON has no numbers as names
    for section in ("serving", "limits"):
        defaults = type(getattr(chosen, section))().model_dump(mode="json")
        document[section] = {k: v for k, v in document[section].items() if k not in defaults or v != defaults[k]}
        if not document[section]:
            del document[section]
    return write_yaml(document)


def write_yaml(document: object, *, flow: bool | None = None) -> str:
    """Keys in their order. `flow`: as PyYAML's `default_flow_style`, None puts the innermost on one line."""
    for unicode in (True, False):
        text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=flow, allow_unicode=unicode, width=100)
        if not BREAKS.intersection(text):
            break
    return text


def bundled_names() -> list[str]:
    return sorted(path.stem for path in (ASSETS / "recipes").glob("*.yaml"))


def describe(name: str) -> str:
    """Return the sentence that describes a bundled recipe: the comment on its first line."""
    return (
        (ASSETS / "recipes" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    )
