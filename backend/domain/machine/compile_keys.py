"""Keys of compiled artifacts: fields that decide what one is good for, and in which fields two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.domain.frozen import Frozen


class Difference(Frozen):
    """One field: its value in the key that is wanted, and in the one that is there."""

    field: str
    wanted: Any
    there: Any


def find_differences(
    wanted: Mapping[str, Any], there: Mapping[str, Any], names: Iterable[str] | None = None
) -> list[Difference]:
    """The fields that differ, in the order of `names` or of the wanted key; a field that one of them lacks is None
    there."""
    chosen = list(names) if names is not None else list(dict.fromkeys([*wanted, *there]))
    pairs = ((name, wanted.get(name), there.get(name)) for name in chosen)
    return [Difference(field=name, wanted=mine, there=its) for name, mine, its in pairs if mine != its]
