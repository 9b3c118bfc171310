"""Two texts beside each other: the words in which they differ. Pure; knows nothing of how they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import NamedTuple

MAX_COMPARED = 2000
"""Words a side, between the beginning and the end that both share; beyond, all of the middle counts as different."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


class Piece(NamedTuple):
    """A stretch of an answer; `differs` where the other answer has something else there."""

    text: str
    differs: bool


def words(text: str) -> list[str]:
    """Words, signs and the white space between them; joined they are the text."""
    return _WORD.findall(text)


def differences(first: str, second: str) -> tuple[list[Piece], list[Piece]]:
    """Both answers in pieces, equal and different ones; white space alone never counts as a difference."""
    mine, theirs = Words(first), Words(second)
    same = [False] * len(mine.keys), [False] * len(theirs.keys)
    for at, other, length in _matches(mine.keys, theirs.keys):
        same[0][at : at + length] = same[1][other : other + length] = [True] * length
    return mine.pieces(same[0]), theirs.pieces(same[1])


class Words:
    """A text as its words, each with the white space after it; what stands before the first word goes with none."""

    def __init__(self, text: str) -> None:
        found = words(text)
        self.head = found.pop(0) if found and found[0].isspace() else ""
        self.keys: list[str] = []
        self.spaces: list[str] = []
        for word in found:
            if word.isspace():
                self.spaces[-1] = word
            else:
                self.keys.append(word)
                self.spaces.append("")

    def pieces(self, same: Sequence[bool]) -> list[Piece]:
        """Neighbours of one kind joined, the space between two different words of a line marked with them."""
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
    """(place in first, place in second, length) of what both have, in order."""
    head = shared(first, second)
    tail = shared(first[head:][::-1], second[head:][::-1])
    middle, other = first[head : len(first) - tail], second[head : len(second) - tail]
    found = [(0, 0, head), (len(first) - tail, len(second) - tail, tail)]
    if max(len(middle), len(other)) <= MAX_COMPARED:
        blocks = SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks()
        found += [(head + block.a, head + block.b, block.size) for block in blocks]
    return found


def shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many words two answers have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
