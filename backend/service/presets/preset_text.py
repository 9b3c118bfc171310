"""Presets as one YAML file, read as strictly as a recipe: safe types, no anchors, no key or preset twice, nothing
large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from backend.domain.errors import InvalidPreset, InvalidRecipe
from backend.domain.planner.presets import Preset
from backend.domain.recipe import recipe
from backend.domain.validation import first_flaw
from backend.service import paths
from backend.service.plans import recipe_files

MAX_BYTES = 500_000
MOST = 500
"""Presets in one file."""
WHAT = "file of presets"


def write(presets: Sequence[Preset]) -> str:
    """Return the presets as YAML that `read` accepts, without defaults."""
    document = {"presets": [_preset_document(preset) for preset in presets]}
    return recipe_files.write_yaml(document, flow=False)


def _preset_document(preset: Preset) -> dict[str, Any]:
    fields = preset.model_dump(mode="json", exclude={"recipe", "published"})
    fields["recipe"] = yaml.safe_load(recipe_files.write_text(preset.recipe))
    if preset.published:
        fields["published"] = [claim.model_dump(mode="json", exclude_none=True) for claim in preset.published]
    return fields


def read_file(path: Path) -> list[Preset]:
    """Raises InvalidPreset, and RequestError for a file that the kernel makes up."""
    paths.check_on_disk(path.resolve())
    if path.exists() and not path.is_file():
        raise InvalidPreset(f"{path} cannot be read, since it is no file: give one that `presets export` wrote.")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidPreset(f"{path} has more than {MAX_BYTES // 1000} kB: export fewer presets at once.")
        return read(path.read_bytes())
    except OSError as error:
        raise InvalidPreset(
            f"{path} cannot be read ({error.strerror}): give a file that `presets export` wrote."
        ) from None


def read(content: bytes | str) -> list[Preset]:
    """In the file's order. Raises InvalidPreset with one sentence that names the first wrong line, field or preset."""
    # 1. Parse the document.
    try:
        document = recipe_files.read_yaml(_text(content), what=WHAT, most=MAX_BYTES)
    except InvalidRecipe as error:
        raise InvalidPreset(str(error)) from None
    if not isinstance(document, dict) or set(document) != {"presets"} or not isinstance(document["presets"], list):
        raise InvalidPreset(
            "The file must hold `presets:` and a list below it, and nothing else: see `whetstone presets export`."
        )
    # 2. Check each preset; ids must differ.
    entries = document["presets"]
    if not entries or len(entries) > MOST:
        raise InvalidPreset(f"The file holds {len(entries)} presets: it must be at least one and at most {MOST}.")
    presets = [_preset(entry, number) for number, entry in enumerate(entries, 1)]
    ids = [preset.id for preset in presets]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise InvalidPreset(f"The file holds the preset `{twice}` twice: rename or remove one.")
    return presets


def _text(content: bytes | str) -> str:
    if len(content) > MAX_BYTES:
        raise InvalidPreset(f"The {WHAT} has more than {MAX_BYTES // 1000} kB: export fewer presets at once.")
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidPreset(f"The {WHAT} is not text: it is a YAML file that `presets export` wrote.") from None


def _preset(entry: Any, number: int) -> Preset:
    name = entry.get("id") if isinstance(entry, dict) else None
    which = f"`{name[:120]}`" if isinstance(name, str) else f"number {number}"
    if not isinstance(entry, dict):
        raise InvalidPreset(f"Preset {which} must be a mapping with `id`, `model`, `goal`, `target` and `recipe`.")
    try:
        chosen = recipe.read(entry.get("recipe"))
        return Preset.model_validate({**entry, "recipe": chosen})
    except InvalidRecipe as error:
        raise InvalidPreset(f"Preset {which}: {error}") from None
    except ValidationError as error:
        raise InvalidPreset(first_flaw(error).sentence_at(f"Preset {which}")) from None
