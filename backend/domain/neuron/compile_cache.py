"""Looks up whether the result of a compilation is in the cache, and if not, the nearest entry and its differences.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from backend.domain.frozen import Facts, Frozen
from backend.domain.machine import compile_keys
from backend.domain.neuron.compile_plan import CompilePlan


class CacheEntry(Frozen):
    """One compiled result: its key, the fields that the key was made of, and the model's id."""

    key: str
    model: str
    fields: Facts
    files: dict[str, tuple[int, str]]
    """Path -> bytes and sha256."""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


class CacheLookup(Frozen):
    """The answer. `hit`: fetched, nothing is compiled.

    `nearest` and `differs` of a miss where the cache has that stack.
    """

    state: Literal["hit", "miss"]
    key: str
    nearest: str | None = None
    differs: tuple[compile_keys.Difference, ...] = ()

    @property
    def sentence(self) -> str:
        if self.state == "hit":
            return f"In the cache under {self.key}: it is fetched, nothing is compiled."
        if self.nearest is None:
            return f"Not in the cache ({self.key}): it is compiled; the cache has nothing of that stack."
        named = ", ".join(
            f"{difference.field} (wanted {difference.wanted}, there {difference.there})" for difference in self.differs
        )
        return f"Not in the cache ({self.key}): it is compiled. The nearest entry, {self.nearest}, differs in {named}."


def look_up(plan: CompilePlan, entries: Iterable[CacheEntry]) -> CacheLookup:
    """Return the entry for the plan, or the nearest one.

    A model whose weights are not here has no hash: then an entry of a model of that name counts.
    """
    # 1. The entry that differs in the fewest fields, of the same stack first.
    fields = plan.fields
    ranked = []
    for entry in entries:
        names = [name for name in fields if name != "model_hash" or plan.model_hash or entry.model != plan.model]
        ranked.append((compile_keys.find_differences(fields, entry.fields, names), entry))
    nearest = min(
        ranked, key=lambda pair: (pair[1].fields.get("stack") != plan.stack, len(pair[0]), pair[1].key), default=None
    )
    # 2. One that differs in nothing is a hit; another is named if it is of the same stack.
    if nearest is not None and not nearest[0]:
        return CacheLookup(state="hit", key=nearest[1].key)
    if nearest is None or nearest[1].fields.get("stack") != plan.stack:
        return CacheLookup(state="miss", key=plan.key)
    return CacheLookup(state="miss", key=plan.key, nearest=nearest[1].key, differs=tuple(nearest[0]))
