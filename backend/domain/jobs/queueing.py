"""Which queued job may start on a host, and why another waits. Pure functions over claims in queue order.

A job is never starved: one that lacks something holds what it lacks against all that stand behind it, which may start
only where it could still start once those before it have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.jobs.claims import GIB, Capacity, Claim, claimed_units, find_shortages, fits


class QueueEntry(NamedTuple):
    """A queued or live job. What yields stands behind all that does not, else the lower rank is first."""

    id: str
    claim: Claim
    rank: float
    yields: bool = False

    @property
    def place(self) -> tuple[bool, float]:
        return self.yields, self.rank


def choose_next(live: Sequence[QueueEntry], queued: Sequence[QueueEntry], capacity: Capacity) -> QueueEntry | None:
    """Of entries in queue order, the one that may start beside the live ones, or None.

    One that yields starts only where no other is queued. What the host can never hold, or has no disk for now, is
    passed over.
    """
    passed: list[QueueEntry] = []
    for entry in [each for each in queued if not each.yields] or queued:
        if _cannot_start(entry.claim, capacity):
            continue
        if find_blockers(entry, live, passed, capacity) is None:
            return entry
        passed.append(entry)
    return None


def _cannot_start(claim: Claim, capacity: Capacity) -> bool:
    """Whether the host can never hold it, has no disk for it now, or its cluster is given no more jobs now."""
    if claim.movable and capacity.cluster == 0:
        return True
    return not fits([claim], capacity) or (capacity.disk_bytes is not None and claim.disk_bytes > capacity.disk_bytes)


def find_blockers(
    entry: QueueEntry, live: Sequence[QueueEntry], ahead: Sequence[QueueEntry], capacity: Capacity
) -> list[QueueEntry] | None:
    """The live jobs that have what it needs, else the one that waits ahead of it and would be starved; None where
    neither is."""
    if find_shortages([entry.claim, *(each.claim for each in live)], capacity):
        return find_holders(entry.claim, live, capacity)
    for first in ahead:
        beside = [each.claim for each in live if each.place > first.place]
        if not fits([first.claim, entry.claim, *beside], capacity):
            return [first]
    return None


def find_holders(claim: Claim, live: Sequence[QueueEntry], capacity: Capacity) -> list[QueueEntry]:
    """The live jobs that have some of what it lacks."""
    short = find_shortages([claim, *(each.claim for each in live)], capacity)
    return [each for each in live if _holds_some(each.claim, short, capacity)]


def _holds_some(claim: Claim, short: Sequence[str], capacity: Capacity) -> bool:
    found = claimed_units(claim, capacity)
    return (
        bool(found.named & set(short))
        or ("cores" in short and found.cores > 0)
        or ("memory" in short and found.memory > 0)
    )


def choose_to_stop(live: Sequence[QueueEntry], queued: Sequence[QueueEntry], capacity: Capacity) -> list[QueueEntry]:
    """The live jobs that yield and without which a person's own could start now; no more of them than needed, the last
    first."""
    own, staying = [each for each in queued if not each.yields], [each for each in live if not each.yields]
    wanted = choose_next(staying, own, capacity)
    leaving: list[QueueEntry] = []
    for each in (
        sorted((each for each in live if each.yields), key=lambda one: one.rank, reverse=True) if wanted else []
    ):
        beside = [one for one in live if one not in leaving]
        if wanted is not None and each in find_holders(wanted.claim, beside, capacity):
            leaving.append(each)
    return leaving


class WaitReason(NamedTuple):
    """Why a job does not start, and the jobs that it waits for."""

    sentence: str
    on: tuple[str, ...] = ()


def explain_wait(
    entry: QueueEntry, live: Sequence[QueueEntry], ahead: Sequence[QueueEntry], capacity: Capacity
) -> WaitReason | None:
    """What stands in its way on that host; None where it may start. `ahead`: the queued ones before it that may
    start."""
    claim = entry.claim
    if not fits([claim], capacity):
        has = f"{capacity.cores} cores, {capacity.memory_bytes // GIB} GiB of memory, {capacity.gpus} GPUs"
        return WaitReason(f"It needs {_needs_text(claim, capacity)}; the machine has {has}.")
    if capacity.disk_bytes is not None and claim.disk_bytes > capacity.disk_bytes:
        return WaitReason(
            f"It needs {claim.disk_bytes / 1e9:.3g} GB of disk and {capacity.disk_bytes / 1e9:.3g} GB are free: free some."
        )
    if entry.yields and any(not each.yields for each in ahead):
        return WaitReason("It makes room for all other jobs.")
    able = [each for each in ahead if not _cannot_start(each.claim, capacity)]
    entries = find_blockers(entry, live, able, capacity)
    if entries is None:
        return None
    ids = tuple(each.id for each in entries)
    short = find_shortages([claim, *(each.claim for each in live)], capacity)
    if not short:
        return WaitReason(
            f"It is behind {ids[0]}, which came first and needs {_needs_text(entries[0].claim, capacity)}.", ids
        )
    named = " and ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return WaitReason(
        f"It waits for {_shortage_text(claim, short, live, capacity)}: {named} {'has' if len(ids) == 1 else 'have'} it.",
        ids,
    )


def _needs_text(claim: Claim, capacity: Capacity) -> str:
    """All that it takes, in words."""
    if claim.whole:
        return "the machine to itself"
    found = claimed_units(claim, capacity)
    cores = "every core" if claim.cores is None else f"{found.cores} cores"
    parts = [cores if found.cores else "", f"{found.memory} GiB of memory" if found.memory else ""]
    return " and ".join(filter(None, [*parts, *(_unit_text(name) for name in sorted(found.named))]))


def _shortage_text(claim: Claim, short: Sequence[str], live: Sequence[QueueEntry], capacity: Capacity) -> str:
    """What is short, in words, with how much of it is free."""
    if claim.whole:
        return "the machine to itself, since it measures"
    if any(each.claim.whole for each in live):
        return "the machine, which a measurement has to itself"
    wanted, held = claimed_units(claim, capacity), [claimed_units(each.claim, capacity) for each in live]
    parts = []
    if "cores" in short:
        free = capacity.cores - sum(one.cores for one in held)
        parts.append("every core" if claim.cores is None else f"{wanted.cores} cores ({free} free)")
    if "memory" in short:
        free = capacity.memory_bytes // GIB - sum(one.memory for one in held)
        parts.append(f"{wanted.memory} GiB of memory ({free} free)")
    return " and ".join([*parts, *(_unit_text(name) for name in short if name in wanted.named)])


def _unit_text(unit: str) -> str:
    return f"GPU {unit.removeprefix('gpu')}" if unit.startswith("gpu") else "the place of installs and downloads"
