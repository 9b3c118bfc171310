"""Find the names that a person may mean by some words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

NEAREST = 3
"""The most names that a message offers."""
LONGEST = 80
"""Characters of the words that are compared."""


def find_similar(words: str, known: Iterable[str]) -> list[str]:
    """Return at most three names: those that have all the words, then the most similar by difflib's ratio; none if
    none is similar. Case does not matter."""
    # 1. Names that have all the words, the most similar one first; longer text is no part of a name.
    text = words[:LONGEST].casefold()
    spelled = {name.casefold(): name for name in known}
    within = [name for name in spelled if len(words) <= LONGEST and _has_words(name, text)]
    within.sort(key=lambda name: difflib.SequenceMatcher(None, text, name).ratio(), reverse=True)
    # 2. Then those that are spelled alike.
    alike = difflib.get_close_matches(text, spelled, NEAREST, 0.5)
    return [spelled[name] for name in dict.fromkeys([*within, *alike])][:NEAREST]


def nearest(words: str, known: Iterable[str]) -> list[str]:
    """Return the three most similar names; the first three if none is similar."""
    choices = list(known)
    return find_similar(words, choices) or choices[:NEAREST]


def find_fitting(words: str, names: Mapping[str, str]) -> list[str]:
    """Return the keys of the names that have all the words, in any case; a name that is the words themselves is the
    only one."""
    text = words.casefold().strip()
    exact = [key for key, name in names.items() if name.casefold() == text]
    return exact or [key for key, name in names.items() if _has_words(name.casefold(), text)]


def _has_words(name: str, words: str) -> bool:
    parts = words.split()
    return bool(parts) and all(part in name for part in parts)
