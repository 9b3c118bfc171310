"""The kinds of job, one row each: what a kind takes of its host, what it makes, and which module of the worker runs it.

What differs from job to job of one kind, such as the folders that it reads, is a property of its specification.

A new kind is a value of `JobKind`, a `Specification` in the union `JobSpec` (both in `jobs.py`), a row here, and a
module in `backend/worker/kinds` with `run(spec, channel, memory)`, which returns the document of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.jobs.jobs import (
    EndpointSpec,
    EvaluateSpec,
    ImportSpec,
    InstallSpec,
    JobKind,
    ManagedSpec,
    OptimizeSpec,
    PayoffSpec,
    ServeSpec,
    Specification,
    TrainSpec,
)

HostUse = Literal["share", "whole", "background", "installing", "beside", "none"]
"""`share`: cores, memory and GPUs, beside other jobs. `whole`: the host to itself, since other work would change the
measurement. `background` and `installing`: the one place for downloads and the one for installations, which neither
compute nor measure. `beside`: nothing of its own, since it may run for months; its server takes memory and cores beside
other jobs while it answers. `none`: the job runs at AWS."""
JobResult = Literal["artifact", "managed-artifact", "evaluation", "model"]
"""The thing that the job's result document names. `managed-artifact`: AWS made it, and the job may fetch it."""


class KindRow(NamedTuple):
    """A job kind."""

    specification: type[Specification]
    host_use: HostUse
    result: JobResult | None
    worker: str | None
    """The module in `backend/worker/kinds`; None for a kind that no worker runs."""
    person_paths: tuple[str, ...] = ()
    """The fields of its specification that may hold a path which a person named."""
    movable: bool = False
    """It may run on a node of a cluster, where there is one."""
    serves: bool = False
    """Its worker starts servers, from the environment `serve`."""
    open_ended: bool = False
    """It runs until somebody stops it: its worker may do nothing for hours and is not hung."""

    @property
    def at_aws(self) -> bool:
        return self.host_use == "none"

    @property
    def uses_processor(self) -> bool:
        """Return whether it computes or measures on its host, so that others may have to wait for it."""
        return self.host_use in {"share", "whole"}


KINDS: Mapping[str, KindRow] = {
    JobKind.OPTIMIZE: KindRow(OptimizeSpec, "share", "artifact", "optimize", ("calibration_path",), movable=True),
    JobKind.TRAIN: KindRow(TrainSpec, "share", "artifact", "train", ("prompts_path",)),
    JobKind.SERVE: KindRow(ServeSpec, "share", None, "serve", serves=True, open_ended=True),
    JobKind.ENDPOINT: KindRow(EndpointSpec, "beside", None, "endpoint", serves=True, open_ended=True),
    JobKind.EVALUATE: KindRow(EvaluateSpec, "whole", "evaluation", "evaluate", movable=True, serves=True),
    JobKind.PAYOFF: KindRow(PayoffSpec, "whole", None, "payoff", ("prompts",), movable=True, serves=True),
    JobKind.IMPORT: KindRow(ImportSpec, "background", "model", "import_", ("source",)),
    JobKind.INSTALL: KindRow(InstallSpec, "installing", None, "install"),
    JobKind.MANAGED: KindRow(ManagedSpec, "none", "managed-artifact", None, ("weights",)),
}
