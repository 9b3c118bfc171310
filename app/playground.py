"""Two answers beside each other: the words in which they differ, marked, and what one answer's own time was. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import takewhile
from typing import NamedTuple

from app.words import seconds
from backend.domain.wording import figure
from backend.service.playground import Timing

MAX_COMPARED = 2000
"""Words a side, between the beginning and the end that both share; beyond, all of the middle counts as different."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_PRE = "margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:0.875rem;line-height:1.6"
_MARK = "color:inherit;background:rgba(214,140,0,0.28);text-decoration:underline;text-decoration-thickness:2px"


class Piece(NamedTuple):
    """A stretch of an answer; `differs` where the other answer has something else there."""

    text: str
    differs: bool


def words(text: str) -> list[str]:
    """Words, signs and the white space between them; joined they are the text."""
    return _WORD.findall(text)


def differences(first: str, second: str) -> tuple[list[Piece], list[Piece]]:
    """Both answers in pieces, equal and different ones; white space alone never counts as a difference."""
    mine, theirs = _Words(first), _Words(second)
    same = [False] * len(mine.keys), [False] * len(theirs.keys)
    for at, other, length in _matches(mine.keys, theirs.keys):
        same[0][at : at + length] = same[1][other : other + length] = [True] * length
    return mine.pieces(same[0]), theirs.pieces(same[1])


class _Words:
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
    found: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        if found and found[-1].differs == piece.differs:
            found[-1] = Piece(found[-1].text + piece.text, piece.differs)
        else:
            found.append(piece)
    return found


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


def markup(pieces: Sequence[Piece]) -> str:
    """HTML of an answer: every character of it inert, white space kept, differences marked by background and underline."""
    body = "".join(f'<mark style="{_MARK}">{escape(text)}</mark>' if differs else escape(text) for text, differs in pieces)
    return f'<pre style="{_PRE}">{body}</pre>'


def verdict(first: str, second: str) -> str:
    """Whether and where two answers part, in words."""
    if first == second:
        return "The answers are identical, character by character."
    mine, theirs = _Words(first).keys, _Words(second).keys
    if mine == theirs:
        return "The answers have the same words and differ in spaces or line breaks only."
    parted = [sum(len(_Words(piece.text).keys) for piece in side if piece.differs) for side in differences(first, second)]
    same = shared(mine, theirs)
    start = f"The first {same} words are the same" if same else "They differ from the first word on"
    return f"{start}; {parted[0]} of {len(mine)} words on the left and {parted[1]} of {len(theirs)} on the right are marked."


def speed(timing: Timing) -> str:
    """One answer's own time, so far or in the end: time to first token, tokens, tokens a second."""
    first = "no token yet" if timing.first_s is None else f"first token after {timing.first_s * 1000:.0f} ms"
    parts = [first]
    if timing.tokens is not None:
        parts.append(f"{timing.tokens} {'token' if timing.tokens == 1 else 'tokens'}")
    if timing.tokens_per_s is not None:
        parts.append(f"{figure(timing.tokens_per_s)} tokens/s")
    if timing.total_s is not None:
        parts.append(f"{timing.total_s:.1f} s" if timing.total_s < 60 else seconds(timing.total_s))
    return " · ".join(parts)
