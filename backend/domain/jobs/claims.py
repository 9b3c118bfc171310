"""What a job takes of a host, in numbered units that are one job's at a time: cores, GiB of memory, GPUs, the
background.

Units are what a database can keep apart by a unique key, whoever counts; and a worker keeps to the cores and GPUs that
it was granted. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen

GIB = 1 << 30
BACKGROUND = "background"
"""The one place of a host for what neither computes nor measures: installs and downloads."""


class Claim(Frozen):
    """Of one job, from its claim to its end. `cores` and `gpus` None: all that the host has."""

    whole: bool = False
    """The host to itself: the job measures."""
    background: bool = False
    movable: bool = False
    """It may run on a node of a cluster, where there is one, and then takes nothing of the host."""
    cores: int | None = Field(None, ge=0)
    gpus: tuple[int, ...] | None = None
    memory_bytes: int = Field(0, ge=0)
    disk_bytes: int = Field(0, ge=0)
    """What must be free before it starts; nothing is set aside."""

    @property
    def text(self) -> str:
        """As it stands in a job's row: jobs of the same claim have the same text."""
        return self.model_dump_json(exclude_defaults=True)


class Capacity(Frozen):
    """What a host has. `disk_bytes` is what is free now; None where that was not looked at."""

    cores: int = Field(1, ge=1)
    memory_bytes: int = Field(1 << 40, ge=1)
    gpus: int = Field(0, ge=0)
    disk_bytes: int | None = None
    cluster: int | None = Field(None, ge=0)
    """How many more jobs its cluster is given now; None where it has none."""


class Units(NamedTuple):
    """A claim in units of one host."""

    cores: int
    memory: int
    named: frozenset[str]
    """GPUs and the background."""


class Granted(Frozen):
    """What a worker may use, by index among what its host lets it use; None for all."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    claim: Claim | None = None
    """What a cluster is asked for, where the worker is to run on one."""


def claimed_units(claim: Claim, capacity: Capacity) -> Units:
    """What the claim comes to on such a host; perhaps more than it has."""
    if claim.movable and capacity.cluster is not None:
        return Units(0, 0, frozenset())
    gpus = range(capacity.gpus) if claim.whole or claim.gpus is None else claim.gpus
    named = {f"gpu{number}" for number in gpus} | ({BACKGROUND} if claim.whole or claim.background else set())
    if claim.whole:
        return Units(capacity.cores, 0, frozenset(named))
    cores = capacity.cores if claim.cores is None else claim.cores
    return Units(cores, -(-claim.memory_bytes // GIB), frozenset(named))


def memory_units(capacity: Capacity) -> int:
    return max(1, capacity.memory_bytes // GIB)


def find_shortages(claims: Iterable[Claim], capacity: Capacity) -> list[str]:
    """What the host has too little of for all of these at once: `cores`, `memory`, names of single units; [] where they
    fit."""
    found = [claimed_units(claim, capacity) for claim in claims]
    every = {f"gpu{number}" for number in range(capacity.gpus)} | {BACKGROUND}
    names = [name for one in found for name in one.named]
    short = sorted({name for name in names if names.count(name) > 1 or name not in every})
    if sum(one.cores for one in found) > capacity.cores:
        short.append("cores")
    if sum(one.memory for one in found) > memory_units(capacity):
        short.append("memory")
    return short


def fits(claims: Iterable[Claim], capacity: Capacity) -> bool:
    return not find_shortages(claims, capacity)


def allocate(claim: Claim, capacity: Capacity, taken: Sequence[str]) -> list[str] | None:
    """The names of units for the claim beside those taken, the lowest free ones; None where they do not suffice."""
    wanted, used = claimed_units(claim, capacity), set(taken)
    cores = _free_units("core", capacity.cores, used)[: wanted.cores]
    memory = _free_units("memory", memory_units(capacity), used)[: wanted.memory]
    beyond = {
        name for name in wanted.named if name.startswith("gpu") and int(name.removeprefix("gpu")) >= capacity.gpus
    }
    if len(cores) < wanted.cores or len(memory) < wanted.memory or beyond or used & wanted.named:
        return None
    return [*cores, *memory, *sorted(wanted.named)]


def _free_units(name: str, number: int, used: set[str]) -> list[str]:
    return [unit for unit in (f"{name}{index}" for index in range(number)) if unit not in used]


def make_grant(allocated: Sequence[str], capacity: Capacity, claim: Claim | None = None) -> Granted:
    """For the worker: its cores where it has not all of them or none of its own, its GPUs where the host has any. On a
    cluster it has what that gives it."""
    if claim is not None and claim.movable and capacity.cluster is not None:
        return Granted(claim=claim)
    cores = _unit_numbers("core", allocated)
    part = 0 < len(cores) < capacity.cores
    return Granted(cores=cores if part else None, gpus=_unit_numbers("gpu", allocated) if capacity.gpus else None)


def _unit_numbers(name: str, allocated: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(int(unit.removeprefix(name)) for unit in allocated if unit.startswith(name)))
