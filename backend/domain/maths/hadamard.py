"""Sizes that have a Hadamard matrix made of Paley's constructions and doublings.

A Hadamard matrix of order n has entries 1 and -1 and n times the identity as its product with its transpose. Orders:
q + 1 for a prime q of the form 4k + 3, 2 (q + 1) for one of the form 4k + 1 (Paley 1933, constructions I and II), and
twice any order that has one (Sylvester 1867).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple


class HadamardFactors(NamedTuple):
    """A size as `base` x 2 ** `doublings`. `prime` is Paley's, 0 where the base is 1; `construction` says which."""

    base: int
    doublings: int
    prime: int = 0
    construction: Literal["I", "II"] = "I"


@lru_cache(maxsize=256)
def find_factors(size: int) -> HadamardFactors | None:
    """Return the factors of a size, with the most doublings; None where no construction gives it."""
    if size < 1:
        return None
    odd, doublings = size, 0
    while odd % 2 == 0:
        odd, doublings = odd // 2, doublings + 1
    if odd == 1:
        return HadamardFactors(1, doublings)
    for used in range(doublings + 1):
        base = odd << used
        if (base - 1) % 4 == 3 and _is_prime(base - 1):
            return HadamardFactors(base, doublings - used, base - 1, "I")
        if base % 2 == 0 and (base // 2 - 1) % 4 == 1 and _is_prime(base // 2 - 1):
            return HadamardFactors(base, doublings - used, base // 2 - 1, "II")
    return None


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
