"""Compare two answers: mark the words that differ, and describe the timing of an answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.formatting import seconds
from backend.domain.figures import figure
from backend.present.words.text_differences import MAX_COMPARED, Piece, Words, differences, shared, words
from backend.service.serving.playground import Timing

__all__ = [
    "MAX_COMPARED",
    "Piece",
    "difference_sentence",
    "differences",
    "markup",
    "shared",
    "speed_text",
    "timing_text",
    "words",
]

_PRE = "margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:0.875rem;line-height:1.6"
_MARK = "color:inherit;background:rgba(214,140,0,0.28);text-decoration:underline;text-decoration-thickness:2px"


def markup(pieces: Sequence[Piece]) -> str:
    """Return an answer as inert HTML: white space is preserved, differing words are highlighted and underlined."""
    body = "".join(
        f'<mark style="{_MARK}">{escape(text)}</mark>' if differs else escape(text) for text, differs in pieces
    )
    return f'<pre style="{_PRE}">{body}</pre>'


def difference_sentence(first: str, second: str) -> str:
    """Return a sentence that says whether and where two answers differ."""
    # The same, or the same but for white space.
    if first == second:
        return "The answers are identical, character by character."
    mine, theirs = Words(first).keys, Words(second).keys
    if mine == theirs:
        return "The answers have the same words and differ in spaces or line breaks only."
    # Count the words that differ on each side, and those before the first difference.
    parted = [
        sum(len(Words(piece.text).keys) for piece in side if piece.differs) for side in differences(first, second)
    ]
    same = shared(mine, theirs)
    start = f"The first {same} words are the same" if same else "They differ from the first word on"
    return (
        f"{start}; {parted[0]} of {len(mine)} words on the left and {parted[1]} of {len(theirs)} on the right "
        "are marked."
    )


def speed_text(timing: Timing) -> str:
    """Return the output tokens/s of one answer, so far or at the end; a dash while they are not known."""
    return "– tokens/s" if timing.tokens_per_s is None else f"{figure(timing.tokens_per_s)} tokens/s"


def timing_text(timing: Timing) -> str:
    """Return time to first token, tokens and seconds of one answer, so far or at the end."""
    first = "no token yet" if timing.first_s is None else f"first token after {timing.first_s * 1000:.0f} ms"
    parts = [first]
    if timing.tokens is not None:
        parts.append(f"{timing.tokens} {'token' if timing.tokens == 1 else 'tokens'}")
    if timing.total_s is not None:
        parts.append(f"{timing.total_s:.1f} s" if timing.total_s < 60 else seconds(timing.total_s))
    return " · ".join(parts)
