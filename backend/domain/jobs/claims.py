"""A job's claim on a host, in numbered units that one job has at a time: cores, GiB of memory, GPUs, named places.

A database can keep units apart by a unique key, whoever counts; and a worker stays on the cores and GPUs that it was
granted. Pure arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.machine.device import GIB

BACKGROUND, INSTALLING = "background", "installing"
"""The places of a host for jobs that neither compute nor measure: one for downloads, one for installations."""
PLACES = frozenset((BACKGROUND, INSTALLING))


class Claim(Frozen):
    """The claim of one job, from its claim to its end. `cores` and `gpus` None: all that the host has."""

    whole: bool = False
    """The host to itself: the job measures."""
    background: bool = False
    installing: bool = False
    beside: bool = False
    """It takes nothing for itself, and may use everything beside other jobs."""
    movable: bool = False
    """It may run on a node of a cluster, where there is one, and then takes nothing of the host."""
    cores: int | None = Field(None, ge=0)
    gpus: tuple[int, ...] | None = None
    memory_bytes: int = Field(0, ge=0)
    disk_bytes: int = Field(0, ge=0)
    """Bytes that must be free before it starts; nothing is reserved."""

    @property
    def text(self) -> str:
        """Return the text in a job's row; the same claim has the same text."""
        return self.model_dump_json(exclude_defaults=True)


class Capacity(Frozen):
    """The resources of a host. `disk_bytes` is what is free now; None if that was not read."""

    cores: int = Field(1, ge=1)
    memory_bytes: int = Field(1 << 40, ge=1)
    gpus: int = Field(0, ge=0)
    disk_bytes: int | None = None
    cluster: int | None = Field(None, ge=0)
    """The number of further jobs that its cluster gets now; None where it has none."""


class Units(NamedTuple):
    """A claim in units of one host."""

    cores: int
    memory: int
    named: frozenset[str]
    """GPUs and places."""


class Granted(Frozen):
    """The resources that a worker may use, by index among those of its host; None for all."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    claim: Claim | None = None
    """The request to a cluster, where the worker is to run on one."""


def claimed_units(claim: Claim, capacity: Capacity) -> Units:
    """Return the units of that host that the claim comes to; perhaps more than the host has."""
    if claim.beside or (claim.movable and capacity.cluster is not None):
        return Units(0, 0, frozenset())
    gpus = range(capacity.gpus) if claim.whole or claim.gpus is None else claim.gpus
    named = {f"gpu{number}" for number in gpus}
    if claim.whole:
        named |= PLACES
        return Units(capacity.cores, 0, frozenset(named))
    named |= ({BACKGROUND} if claim.background else set()) | ({INSTALLING} if claim.installing else set())
    cores = capacity.cores if claim.cores is None else claim.cores
    return Units(cores, -(-claim.memory_bytes // GIB), frozenset(named))


def memory_units(capacity: Capacity) -> int:
    return max(1, capacity.memory_bytes // GIB)


def find_shortages(claims: Iterable[Claim], capacity: Capacity) -> list[str]:
    """Return what the host has too little of for all claims at once: `cores`, `memory`, names of single units; [] if
    they fit."""
    claimed = [claimed_units(claim, capacity) for claim in claims]
    every = {f"gpu{number}" for number in range(capacity.gpus)} | PLACES
    counts = Counter(name for units in claimed for name in units.named)
    short = sorted(name for name, count in counts.items() if count > 1 or name not in every)
    if sum(units.cores for units in claimed) > capacity.cores:
        short.append("cores")
    if sum(units.memory for units in claimed) > memory_units(capacity):
        short.append("memory")
    return short


def fits(claims: Iterable[Claim], capacity: Capacity) -> bool:
    return not find_shortages(claims, capacity)


def allocate(claim: Claim, capacity: Capacity, in_use: Sequence[str]) -> list[str] | None:
    """Return names of units for the claim besides those in use, the lowest free ones; None if they do not suffice."""
    claimed, used = claimed_units(claim, capacity), set(in_use)
    cores = _free_units("core", capacity.cores, used)[: claimed.cores]
    memory = _free_units("memory", memory_units(capacity), used)[: claimed.memory]
    missing = {
        name for name in claimed.named if name.startswith("gpu") and int(name.removeprefix("gpu")) >= capacity.gpus
    }
    if len(cores) < claimed.cores or len(memory) < claimed.memory or missing or used & claimed.named:
        return None
    return [*cores, *memory, *sorted(claimed.named)]


def _free_units(name: str, number: int, used: set[str]) -> list[str]:
    return [unit for unit in (f"{name}{index}" for index in range(number)) if unit not in used]


def make_grant(allocated: Sequence[str], capacity: Capacity, claim: Claim | None = None) -> Granted:
    """Return the worker's grant: its cores if it has only some of them, its GPUs if the host has any. On a cluster it
    has what the cluster gives it."""
    if claim is not None and claim.movable and capacity.cluster is not None:
        return Granted(claim=claim)
    if claim is not None and claim.beside:
        return Granted()
    cores = _unit_numbers("core", allocated)
    part = 0 < len(cores) < capacity.cores
    return Granted(cores=cores if part else None, gpus=_unit_numbers("gpu", allocated) if capacity.gpus else None)


def _unit_numbers(name: str, allocated: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(int(unit.removeprefix(name)) for unit in allocated if unit.startswith(name)))
