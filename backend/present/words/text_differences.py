"""The words in which two texts differ. Pure; how they are shown is decided elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import NamedTuple

MAX_COMPARED = 2000
"""Most words per text between the shared beginning and end; of a longer middle, all counts as different."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


class Piece(NamedTuple):
    """A stretch of an answer; `differs` where the other answer has something else there."""

    text: str
    differs: bool


def words(text: str) -> list[str]:
    """Split a text into words, signs and white space; joined they are the text."""
    return _WORD.findall(text)


def differences(first: str, second: str) -> tuple[list[Piece], list[Piece]]:
    """Split both answers into equal and different pieces; white space alone never counts as a difference."""
    mine, theirs = Words(first), Words(second)
    same = [False] * len(mine.keys), [False] * len(theirs.keys)
    for start, other, length in _matches(mine.keys, theirs.keys):
        same[0][start : start + length] = same[1][other : other + length] = [True] * length
    return mine.pieces(same[0]), theirs.pieces(same[1])


class Words:
    """A text as its words, each with the white space after it; `head` is the white space before the first word."""

    def __init__(self, text: str) -> None:
        parts = words(text)
        self.head = parts.pop(0) if parts and parts[0].isspace() else ""
        self.keys: list[str] = []
        self.spaces: list[str] = []
        for word in parts:
            if word.isspace():
                self.spaces[-1] = word
            else:
                self.keys.append(word)
                self.spaces.append("")

    def pieces(self, same: Sequence[bool]) -> list[Piece]:
        """Join neighbours of one kind; the space between two different words of a line is marked with them."""
        cut: list[Piece] = [Piece(self.head, False)] if self.head else []
        for number, (key, space) in enumerate(zip(self.keys, self.spaces, strict=True)):
            differs = not same[number]
            inside = differs and number + 1 < len(same) and not same[number + 1] and "\n" not in space
            cut += [Piece(key, differs), Piece(space, inside)]
        return _joined(cut)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    alike = groupby((piece for piece in pieces if piece.text), key=lambda piece: piece.differs)
    return [Piece("".join(piece.text for piece in group), differs) for differs, group in alike]


def _matches(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return (place in first, place in second, length) of each shared stretch, in order."""
    head = shared(first, second)
    tail = shared(first[head:][::-1], second[head:][::-1])
    middle, other = first[head : len(first) - tail], second[head : len(second) - tail]
    matches = [(0, 0, head), (len(first) - tail, len(second) - tail, tail)]
    if max(len(middle), len(other)) <= MAX_COMPARED:
        blocks = SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks()
        matches += [(head + block.a, head + block.b, block.size) for block in blocks]
    return matches


def shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many words two answers share from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
