"""Keys of compiled artifacts: the fields that decide what an artifact is good for, and in which of them two keys
differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.domain.frozen import Frozen


class Difference(Frozen):
    """A field that differs: its value in the required key, and in the existing one."""

    field: str
    wanted: Any
    there: Any


def find_differences(
    required: Mapping[str, Any], existing: Mapping[str, Any], names: Iterable[str] | None = None
) -> list[Difference]:
    """Return the fields that differ, in the order of `names` or of the required key; a field that one of them lacks is
    None there."""
    chosen = list(names) if names is not None else list(dict.fromkeys([*required, *existing]))
    pairs = ((name, required.get(name), existing.get(name)) for name in chosen)
    return [Difference(field=name, wanted=mine, there=its) for name, mine, its in pairs if mine != its]
