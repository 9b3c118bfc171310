"""The catalog's vocabulary.

Filters and orders of the list of models, and the facts of a model that the rules depend on.

Pure. Knows nothing of the store that answers a filter and of the files that the models come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from backend.domain.frozen import Frozen, digest
from backend.domain.model.facts import ModelFacts, PublishedCells, PublishedModel
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.recipe import ORIGINAL, Recipe

LISTED = ("starter", "imported", "folder", "published")
"""Origins that the catalog lists. `reference` models are known, and listed nowhere."""
PUBLISHED = tuple(PublishedCells.model_fields)
"""The published columns, by their names in the matrix."""
FAMILIES = {
    "bloom": "Bloom",
    "cohere": "Cohere",
    "falcon": "Falcon",
    "gemma": "Gemma",
    "gpt2": "gpt2",
    "gpt_neox": "gpt-neox",
    "llama": "LLaMA",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "phi": "Phi",
}
"""`model_type` of config.json -> the family as the published page writes it; a test holds the two together."""
ORIGINAL_KIND = "original"

CatalogOrder = Literal["catalog", "name", "family", "parameters", "context", "kv", "licence"]
"""`catalog`: models of one's own first, then the page's order. `kv`: bytes of key-value cache a token."""


class CatalogFilter(Frozen):
    """Which models to list, in which order; an empty field leaves its column alone.

    `techniques` are kinds (`technique_kind`) as checked on `target`, or names of PUBLISHED as the page has them; all of
    them must hold. `target` is a name of `service.machines.targets`. Parameters and context (tokens) are inclusive
    bounds.
    """

    origins: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    target: str | None = None
    words: str = ""
    min_parameters: int | None = Field(None, ge=0)
    max_parameters: int | None = Field(None, ge=0)
    min_context: int | None = Field(None, ge=0)
    max_context: int | None = Field(None, ge=0)
    sort: CatalogOrder = "catalog"
    descending: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The techniques to check on the target; the original where only a target is given."""
        checked = tuple(name for name in self.techniques if name not in PUBLISHED)
        return checked or ((ORIGINAL_KIND,) if self.target else ())


def technique_kind(technique: str, method: str | None, engine: str = "native") -> str:
    """Return the word for a row of the capability table: `awq`, `ngram`, `compile`, `gptq:llm-compressor`."""
    word = method or technique
    return word if engine == "native" else f"{word}:{engine}"


@lru_cache(maxsize=1)
def technique_recipes() -> Mapping[str, Recipe]:
    """Return recipes by kind: the original, and each technique of the capability table alone."""
    recipes = {ORIGINAL_KIND: ORIGINAL}
    for technique, method, engine, _ in supported():
        options: dict[str, Any] = {"method": method} if method else {}
        name = technique_kind(technique, method, engine)
        recipes[name] = Recipe.model_validate({"name": name, "steps": [{technique: options}]})
    return MappingProxyType(recipes)


def family_name(model: ModelFacts) -> str:
    """Return the family as the published page writes it, or the type of config.json where the page has none."""
    return model.family if isinstance(model, PublishedModel) else FAMILIES.get(model.model_type, model.model_type)


def facts_hash(model: ModelFacts, draft: ModelFacts | None = None) -> str:
    """Return the sha256 over all that the rules read of a model and its draft: equal ones get equal verdicts.

    Left out are what names a model (id, path, revision) and what describes it to people.
    """
    document = {"model": _read(model), "draft": _read(draft) if draft else None}
    return digest(document)[:32]


def _read(model: ModelFacts) -> dict[str, Any]:
    names = set(ModelFacts.model_fields) - {"id", "origin", "draft"}
    cells = model.published.model_dump() if isinstance(model, PublishedModel) and model.published else None
    facts = model.model_dump(mode="json", include=names) | {"has_draft": model.draft is not None}
    return facts | {"cells": cells, "tokenizer": getattr(model, "tokenizer_hash", None) if model.draft else None}
