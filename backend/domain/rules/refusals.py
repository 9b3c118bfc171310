"""Refusals grouped by their reason: "14 techniques: too large for this machine (25 GB); fits ml.g6e.xlarge". Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Refused(NamedTuple):
    """One thing that is refused: its title, and the short form of the first reason against it. `fits`: where it would do, and
    what that costs an hour."""

    title: str
    why: str
    fits: str | None = None
    price: float | None = None


class Group(NamedTuple):
    """All that one reason refuses."""

    titles: tuple[str, ...]
    why: str
    fits: str | None
    """Where all of them would do, or the cheapest place where one would, and which; None where that is not known."""

    @property
    def words(self) -> str:
        """One line; a single one is named."""
        who = self.titles[0] if len(self.titles) == 1 else f"{len(self.titles)} techniques"
        return f"{who}: {self.why}{f'; fits {self.fits}' if self.fits else ''}"


def grouped(refused: Iterable[Refused]) -> list[Group]:
    """The reason that refuses most first; those of equally many in the order in which they came."""
    found: dict[str, list[Refused]] = {}
    for each in refused:
        found.setdefault(each.why, []).append(each)
    groups = [Group(tuple(it.title for it in group), why, _shared(group)) for why, group in found.items()]
    return sorted(groups, key=lambda group: -len(group.titles))


def _shared(group: list[Refused]) -> str | None:
    places = {each.fits for each in group}
    if len(places) == 1:
        return places.pop()
    least = min((each for each in group if each.price is not None), key=lambda each: each.price or 0.0, default=None)
    return f"{least.fits} with {least.title}" if least else None
