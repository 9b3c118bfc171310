"""Whether an answer ends in a loop. Such answers are easy to draft, so they flatter speculative decoding. Text only."""

from __future__ import annotations

SHORTEST_LOOP = 32
"""Characters: below it a rule of dashes or a closing bracket run would count."""
REPEATS = 4


def is_looping(text: str) -> bool:
    """True where the end of the text (white space at the very end left out) repeats one cycle: for some period p, at least
    max(32, 4 p) last characters are each equal to the one p before, a full cycle first.

    Periods come from the Z function of the reversed text (Gusfield 1997, section 1.4), so the cost is linear in the text.
    """
    tail = text.rstrip()[::-1]
    lengths = _z_function(tail)
    return any(p + lengths[p] >= max(SHORTEST_LOOP, REPEATS * p) for p in range(1, len(tail) // REPEATS + 1))


def _z_function(text: str) -> list[int]:
    """z[i]: length of the longest common prefix of text and text[i:]."""
    size = len(text)
    z = [0] * (size + 1)
    left = right = 0
    for i in range(1, size):
        length = min(right - i, z[i - left]) if i < right else 0
        while i + length < size and text[length] == text[i + length]:
            length += 1
        z[i] = length
        if i + length > right:
            left, right = i, i + length
    return z
