"""The claim of a job: cores, memory, disk and GPUs, from its kind, its estimate and its terms."""

from __future__ import annotations

from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import JobKind, JobSpec, OptimizeSpec, TrainSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.domain.machine import targets
from backend.domain.machine.device import GIB
from backend.domain.needs import draft_training_needs
from backend.domain.planner import estimate
from backend.hardware import probe

DISK_STEP = 10_000_000
"""Disk estimates are rounded up to this many bytes, so that a long queue has few different claims."""


def make_claim(spec: JobSpec, terms: Terms) -> Claim:
    """Return the claim of a job. A measurement takes the whole host, installs and imports run in the background, other
    jobs take all cores and GPUs unless the terms ask for fewer."""
    host_use = KINDS[JobKind(spec.kind)].host_use
    if host_use == "whole":
        return Claim(whole=True, movable=True, cores=terms.cores, memory_bytes=terms.memory_bytes or 0)
    if host_use == "none":
        return Claim(cores=0, gpus=())
    if host_use == "background":
        return Claim(background=True, cores=0, gpus=())
    if isinstance(spec, OptimizeSpec):
        return _optimize_claim(spec, terms)
    if isinstance(spec, TrainSpec):
        need = draft_training_needs.memory_bytes(spec.model, spec.options)
        return Claim(cores=terms.cores, memory_bytes=terms.memory_bytes or min(need, probe.total_memory() // GIB * GIB))
    return Claim(cores=terms.cores, memory_bytes=terms.memory_bytes or 0)


def _optimize_claim(spec: OptimizeSpec, terms: Terms) -> Claim:
    need = estimate.estimate_needs(spec.model, spec.recipe, spec.draft)
    most = probe.total_memory() // GIB * GIB  # an estimate beyond the machine keeps nobody from trying
    gpus = () if spec.target == "local:cpu" or spec.neuron is not None else targets.gpu_numbers(spec.target)
    memory = terms.memory_bytes or min(-(-need.memory_bytes // GIB) * GIB, most)
    disk = -(-need.disk_bytes // DISK_STEP) * DISK_STEP
    return Claim(movable=True, cores=terms.cores or _core_share(gpus), gpus=gpus, memory_bytes=memory, disk_bytes=disk)


def _core_share(gpus: tuple[int, ...] | None) -> int | None:
    """Return the share of the cores that goes with so many GPUs; None for all cores."""
    there = len(probe.accelerators())
    return max(1, probe.cores() * len(gpus) // there) if gpus and there else None
