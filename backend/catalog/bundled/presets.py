"""The presets that come with Whetstone, read from the bundled TOML. Knows nothing of the store and of what is valid
where."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from backend.catalog.bundled import toml_tables
from backend.domain.errors import InvalidCatalog
from backend.domain.frozen import Frozen
from backend.domain.planner.presets import Claim, Goal, Preset, PresetId
from backend.domain.recipe.recipe import Recipe
from backend.settings import ASSETS

PATH = ASSETS / "catalog" / "presets.toml"


class _Claim(Frozen):
    """A row of [[claims]]; `source` is a key of [sources]."""

    key: str
    metric: str
    value: float
    against: float | None = None
    unit: str
    statement: str
    conditions: str = ""
    source: str
    cheaper_than: str | None = None


class _Preset(Frozen):
    """A row of [[presets]]; `published` are keys of [[claims]]."""

    id: PresetId
    model: str = Field(min_length=1)
    goal: Goal
    target: str
    summary: str
    recipe: Recipe
    published: tuple[str, ...] = ()


@lru_cache(maxsize=4)
def load(path: Path = PATH) -> dict[str, Preset]:
    """Load the presets by id, in the file's order. Raises InvalidCatalog with one sentence that names the row."""
    sources = toml_tables.document(path).get("sources", {})
    claims = {row.key: _claim(path, row, sources) for row in toml_tables.read(path, "claims", _Claim, "key")}
    return {row.id: _preset(path, row, claims) for row in toml_tables.read(path, "presets", _Preset, "id")}


@lru_cache(maxsize=1)
def digest() -> str:
    """sha256 over all of them in order: another digest is another file of presets. Raises as `load`."""
    return hashlib.sha256("".join(preset.hash for preset in load().values()).encode()).hexdigest()


def _claim(path: Path, row: _Claim, sources: dict[str, Any]) -> Claim:
    source = sources.get(row.source)
    if not isinstance(source, dict) or not {"title", "url"} <= set(source):
        raise InvalidCatalog(
            f"{path.name}, claim `{row.key}`: [sources.{row.source}] needs a title and a url; add them."
        )
    fields = row.model_dump(exclude={"key", "source"})
    return Claim(**fields, source=source["title"], url=source["url"])


def _preset(path: Path, row: _Preset, claims: dict[str, Claim]) -> Preset:
    missing = next((key for key in row.published if key not in claims), None)
    if missing is not None:
        raise InvalidCatalog(
            f"{path.name}, row `{row.id}`: there is no claim `{missing}`; correct the name or add its row."
        )
    fields = {name: getattr(row, name) for name in _Preset.model_fields if name != "published"}
    return Preset(**fields, published=tuple(claims[key] for key in row.published))
