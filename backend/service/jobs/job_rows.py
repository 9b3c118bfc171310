"""From a job specification to the row that is queued: checks and claim."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path

from backend import address, endpoint, files
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import JobKind, JobSpec, JobState, ReadingSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.domain.machine.device import GIB
from backend.hardware import probe
from backend.service import paths
from backend.service.jobs import limits
from backend.service.workspace import Workspace
from backend.store import models
from backend.store.tables import JobRow

DISK_STEP = 10_000_000
"""Disk estimates are rounded up to this many bytes, so that a long queue has few different claims."""


def make_row(
    workspace: Workspace,
    spec: JobSpec,
    title: str,
    *,
    parent: str | None = None,
    submission: str | None = None,
    yields: bool = False,
    terms: Terms | None = None,
    after: str | None = None,
) -> JobRow:
    """Check the specification and return the row of a new queued job.

    Raises RequestError for paths and addresses that may not be used, NotAllowed for what needs a higher role.
    """
    # 1. Check the role, the paths and the addresses, also of a job that is repeated in a studio that is shared now.
    kind, chosen_terms = JobKind(spec.kind), terms or Terms()
    limits.check_engine_role(workspace, spec.model_dump(include={"kind", "action", "index"}))
    if isinstance(spec, ReadingSpec):
        spec = spec.model_copy(update={"seen": {folder: files.stamp(Path(folder)) for folder in sorted(spec.folders)}})
    paths.check_specification(spec, partial(_is_remembered, workspace))
    for url in sorted(spec.addresses):
        address.check_public(endpoint.parse_address(url))
    # 2. Record whether the studio is shared, where the worker has to know.
    if "shared" in type(spec).model_fields:
        spec = spec.model_copy(update={"shared": workspace.settings.shared})
    # 3. Make the row, with its claim.
    return JobRow(
        id="j-" + secrets.token_hex(5),
        kind=kind,
        state=JobState.QUEUED,
        title=title,
        owner=workspace.actor.name,
        spec=spec.model_dump_json(),
        parent=parent,
        submission=submission,
        claim=make_claim(spec, chosen_terms).text,
        terms=chosen_terms.text,
        after=after,
        yields=yields,
    )


def _is_remembered(workspace: Workspace, folder: Path) -> bool:
    with workspace.store.read() as session:
        return models.find(session, str(folder)) is not None


def make_claim(spec: JobSpec, terms: Terms) -> Claim:
    """Return the claim of a job. A measurement takes the whole host, installs and imports have a place each, other
    jobs take all cores and GPUs unless the terms or the target ask for fewer."""
    row = KINDS[spec.kind]
    if row.host_use == "whole":
        return Claim(whole=True, movable=row.movable, cores=terms.cores, memory_bytes=terms.memory_bytes or 0)
    if row.host_use == "beside":
        return Claim(beside=True)
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
