"""Decides which queued job may start on a host, and explains why another waits. Pure functions over claims in queue
order.

A waiting job reserves what it lacks; a later one starts only if the earlier could still start. So no job is starved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.figures import counted
from backend.domain.jobs.claims import BACKGROUND, INSTALLING, Capacity, Claim, claimed_units, find_shortages, fits
from backend.domain.machine.device import GIB


class QueueEntry(NamedTuple):
    """A queued or live job. Jobs that yield come after all others; otherwise the lower rank is first."""

    id: str
    claim: Claim
    rank: float
    yields: bool = False

    @property
    def place(self) -> tuple[bool, float]:
        return self.yields, self.rank


def choose_next(live: Sequence[QueueEntry], queued: Sequence[QueueEntry], capacity: Capacity) -> QueueEntry | None:
    """Return the first entry, in queue order, that may start beside the live ones, or None.

    One that yields starts only if no other is queued. Entries that the host can never hold, or has no disk for now, are
    skipped.
    """
    passed: list[QueueEntry] = []
    for entry in [queued_entry for queued_entry in queued if not queued_entry.yields] or queued:
        if _cannot_start(entry.claim, capacity):
            continue
        if find_blockers(entry, live, passed, capacity) is None:
            return entry
        passed.append(entry)
    return None


def _cannot_start(claim: Claim, capacity: Capacity) -> bool:
    """Return whether the host can never hold the claim, has no disk for it now, or its cluster is full now."""
    if claim.movable and capacity.cluster == 0:
        return True
    return not fits([claim], capacity) or (capacity.disk_bytes is not None and claim.disk_bytes > capacity.disk_bytes)


def find_blockers(
    entry: QueueEntry, live: Sequence[QueueEntry], ahead: Sequence[QueueEntry], capacity: Capacity
) -> list[QueueEntry] | None:
    """Return the live jobs that have what it needs, else the job ahead of it that would be starved; None if there are
    none."""
    if find_shortages([entry.claim, *(other.claim for other in live)], capacity):
        return find_holders(entry.claim, live, capacity)
    for first in ahead:
        later_claims = [other.claim for other in live if other.place > first.place]
        if not fits([first.claim, entry.claim, *later_claims], capacity):
            return [first]
    return None


def find_holders(claim: Claim, live: Sequence[QueueEntry], capacity: Capacity) -> list[QueueEntry]:
    """Return the live jobs that have some of what the claim lacks."""
    short = find_shortages([claim, *(entry.claim for entry in live)], capacity)
    return [entry for entry in live if _holds_some(entry.claim, short, capacity)]


def _holds_some(claim: Claim, short: Sequence[str], capacity: Capacity) -> bool:
    claimed = claimed_units(claim, capacity)
    return (
        bool(claimed.named & set(short))
        or ("cores" in short and claimed.cores > 0)
        or ("memory" in short and claimed.memory > 0)
    )


def choose_to_stop(live: Sequence[QueueEntry], queued: Sequence[QueueEntry], capacity: Capacity) -> list[QueueEntry]:
    """Return the live jobs that yield and without which a person's own could start now: no more than needed, the last
    first."""
    # 1. Find the job of a person's own that could start if none of those that yield ran.
    own = [entry for entry in queued if not entry.yields]
    staying = [entry for entry in live if not entry.yields]
    next_entry = choose_next(staying, own, capacity)
    if next_entry is None:
        return []

    # 2. Stop those that have what it lacks, the last one first.
    yielding = sorted((entry for entry in live if entry.yields), key=lambda entry: entry.rank, reverse=True)
    to_stop: list[QueueEntry] = []
    for entry in yielding:
        remaining = [other for other in live if other not in to_stop]
        if entry in find_holders(next_entry.claim, remaining, capacity):
            to_stop.append(entry)
    return to_stop


class WaitReason(NamedTuple):
    """Why a job does not start, and the jobs that it waits for."""

    sentence: str
    on: tuple[str, ...] = ()


def explain_wait(
    entry: QueueEntry, live: Sequence[QueueEntry], ahead: Sequence[QueueEntry], capacity: Capacity
) -> WaitReason | None:
    """Return why the job cannot start on that host; None if it can. `ahead`: queued jobs before it that may start."""
    claim = entry.claim

    # 1. What the host cannot give at all.
    if not fits([claim], capacity):
        has = f"{counted(capacity.cores, 'core')}, {capacity.memory_bytes // GIB} GiB of memory, {capacity.gpus} GPUs"
        return WaitReason(f"It needs {_needs_text(claim, capacity)}; the machine has {has}.")
    if capacity.disk_bytes is not None and claim.disk_bytes > capacity.disk_bytes:
        return WaitReason(
            f"It needs {claim.disk_bytes / 1e9:.3g} GB of disk and {capacity.disk_bytes / 1e9:.3g} GB are free: "
            "free some."
        )

    # 2. The order of the queue.
    if entry.yields and any(not other.yields for other in ahead):
        return WaitReason("It makes room for all other jobs.")
    able = [other for other in ahead if not _cannot_start(other.claim, capacity)]
    entries = find_blockers(entry, live, able, capacity)
    if entries is None:
        return None
    ids = tuple(other.id for other in entries)

    # 3. What other jobs have.
    short = find_shortages([claim, *(other.claim for other in live)], capacity)
    if not short:
        return WaitReason(
            f"It is behind {ids[0]}, which came first and needs {_needs_text(entries[0].claim, capacity)}.", ids
        )
    named = " and ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    has = "has" if len(ids) == 1 else "have"
    return WaitReason(f"It waits for {_shortage_text(claim, short, live, capacity)}: {named} {has} it.", ids)


def _needs_text(claim: Claim, capacity: Capacity) -> str:
    """Return all that the claim takes, in words."""
    if claim.whole:
        return "the machine to itself"
    claimed = claimed_units(claim, capacity)
    cores = "every core" if claim.cores is None else counted(claimed.cores, "core")
    parts = [cores if claimed.cores else "", f"{claimed.memory} GiB of memory" if claimed.memory else ""]
    return " and ".join(filter(None, [*parts, *(_unit_text(name) for name in sorted(claimed.named))]))


def _shortage_text(claim: Claim, short: Sequence[str], live: Sequence[QueueEntry], capacity: Capacity) -> str:
    """Return what is short, in words, with how much of it is free."""
    if claim.whole:
        return "the machine to itself, since it measures"
    if any(entry.claim.whole for entry in live):
        return "the machine, which a measurement has to itself"
    claimed, live_units = claimed_units(claim, capacity), [claimed_units(entry.claim, capacity) for entry in live]
    parts = []
    if "cores" in short:
        free = capacity.cores - sum(units.cores for units in live_units)
        parts.append("every core" if claim.cores is None else f"{counted(claimed.cores, 'core')} ({free} free)")
    if "memory" in short:
        free = capacity.memory_bytes // GIB - sum(units.memory for units in live_units)
        parts.append(f"{claimed.memory} GiB of memory ({free} free)")
    return " and ".join([*parts, *(_unit_text(name) for name in short if name in claimed.named)])


def _unit_text(unit: str) -> str:
    names = {BACKGROUND: "the place of downloads", INSTALLING: "the place of installations"}
    return names.get(unit, f"GPU {unit.removeprefix('gpu')}")
