"""The claim of a job: cores, memory, disk and GPUs, from its kind, its needs and its terms."""

from __future__ import annotations

from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import JobSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.domain.machine.device import GIB
from backend.hardware import probe

DISK_STEP = 10_000_000
"""Disk estimates are rounded up to this many bytes, so that a long queue has few different claims."""


def make_claim(spec: JobSpec, terms: Terms) -> Claim:
    """Return the claim of a job. A measurement takes the whole host, installs and imports have a place each, other
    jobs take all cores and GPUs unless the terms or the target ask for fewer."""
    row = KINDS[spec.kind]
    if row.host_use == "whole":
        return Claim(whole=True, movable=row.movable, cores=terms.cores, memory_bytes=terms.memory_bytes or 0)
    if not row.uses_processor:
        use = row.host_use
        return Claim(background=use == "background", installing=use == "installing", cores=0, gpus=())
    space = spec.space
    most = probe.total_memory() // GIB * GIB  # an estimate beyond the machine keeps nobody from trying
    return Claim(
        movable=row.movable,
        cores=terms.cores or _core_share(spec.gpus),
        gpus=spec.gpus,
        memory_bytes=terms.memory_bytes or min(space.memory, most),
        disk_bytes=-(-space.disk // DISK_STEP) * DISK_STEP,
    )


def _core_share(gpus: tuple[int, ...] | None) -> int | None:
    """Return the share of the cores that goes with so many GPUs; None for all cores."""
    there = len(probe.accelerators())
    return max(1, probe.cores() * len(gpus) // there) if gpus and there else None
