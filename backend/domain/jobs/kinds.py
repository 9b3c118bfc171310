"""The kinds of job, one row each: what a kind takes of its host, what it makes, and which module of the worker runs it.

A new kind is a value of `JobKind`, a specification in the union `JobSpec` (both in `jobs.py`), a row here, and a module
in `backend/worker/kinds` with `run(spec, channel, memory)`, which returns the document of the result.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel

from backend.domain.jobs.jobs import (
    EvaluateSpec,
    ImportSpec,
    InstallSpec,
    JobKind,
    ManagedSpec,
    OptimizeSpec,
    PayoffSpec,
    ServeSpec,
    TrainSpec,
)

HostUse = Literal["share", "whole", "background", "none"]
"""`share`: cores, memory and GPUs, beside other jobs. `whole`: the host to itself, since other work would change the
measurement. `background`: the one place for jobs that neither compute nor measure. `none`: the job runs at AWS."""
JobResult = Literal["artifact", "managed-artifact", "evaluation", "model"]
"""The thing that the job's result document names. `managed-artifact`: AWS made it, and the job may fetch it."""


class KindRow(NamedTuple):
    """A job kind."""

    specification: type[BaseModel]
    host_use: HostUse
    result: JobResult | None
    worker: str | None
    """The module in `backend/worker/kinds`; None for a kind that no worker runs."""
    serves: bool = False
    """Its worker starts servers, from the environment `serve`."""
    may_idle: bool = False
    """Its worker may do nothing for hours and is not hung."""


KINDS = {
    JobKind.OPTIMIZE: KindRow(OptimizeSpec, "share", "artifact", "optimize"),
    JobKind.TRAIN: KindRow(TrainSpec, "share", "artifact", "train"),
    JobKind.SERVE: KindRow(ServeSpec, "share", None, "serve", serves=True, may_idle=True),
    JobKind.EVALUATE: KindRow(EvaluateSpec, "whole", "evaluation", "evaluate", serves=True),
    JobKind.PAYOFF: KindRow(PayoffSpec, "whole", None, "payoff", serves=True),
    JobKind.IMPORT: KindRow(ImportSpec, "background", "model", "import_"),
    JobKind.INSTALL: KindRow(InstallSpec, "background", None, "install"),
    JobKind.MANAGED: KindRow(ManagedSpec, "none", "managed-artifact", None),
}
