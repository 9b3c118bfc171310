"""Which idle endpoints give up their memory for another one that is asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class OtherEndpoint(NamedTuple):
    """Another endpoint of the machine, in bytes and seconds. `may_leave`: nobody uses it, it is not exempt, and it has
    been loaded for a while."""

    port: int
    memory_bytes: int
    is_loading: bool
    may_leave: bool
    idle_s: float


def choose_to_unload(needed: int, free: int, others: Sequence[OtherEndpoint]) -> list[OtherEndpoint] | None:
    """Return the endpoints to unload so that `needed` bytes are free, the longest idle first and no more than needed;
    none where they are free already, None where that cannot be had now.

    One that is being loaded counts as if it had not taken its memory yet.
    """
    # 1. What is free once those that load have theirs.
    missing = needed - (free - sum(other.memory_bytes for other in others if other.is_loading))
    chosen = list[OtherEndpoint]()
    # 2. Add one after the other, the longest idle first.
    for other in sorted(others, key=lambda each: each.idle_s, reverse=True):
        if missing <= 0:
            break
        if other.may_leave:
            chosen.append(other)
            missing -= other.memory_bytes
    return chosen if missing <= 0 else None
