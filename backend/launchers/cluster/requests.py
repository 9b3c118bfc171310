"""A job's request to a cluster, in Ray's own resources, and why it waits. Pure: Ray places the job.

`whetstone` is a resource of each node that may run jobs: one, of which a measurement takes all and any other job a
thousandth, so that a measurement has its node to itself among jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend.domain.figures import listed
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import JobSpec

RESOURCE = "whetstone"
SHARE = 0.001
CORES = 4
"""Cores that an optimize job requests if a node has so many."""
HOW = f"`ray start --address=HOST:PORT --resources='{{\"{RESOURCE}\": 1}}'`"
NOBODY = f"no node of the cluster takes jobs (start one with {HOW})"
UNITS = {"CPU": "cores", "GPU": "GPUs", "neuron_cores": "Neuron cores"}


class Node(NamedTuple):
    """A node of a cluster. `resources`: all that it has, by Ray's names; `memory` in bytes."""

    id: str
    host: str
    address: str
    alive: bool
    resources: dict[str, float]

    @property
    def takes_jobs(self) -> bool:
        return self.alive and RESOURCE in self.resources

    @property
    def words(self) -> str:
        """The node and what it has, in words."""
        has = {
            name: self.resources[name] for name in ("CPU", "GPU", "neuron_cores", "memory") if self.resources.get(name)
        }
        parts = [
            f"{number / 1e9:.0f} GB" if name == "memory" else f"{number:g} {UNITS[name]}"
            for name, number in has.items()
        ]
        return f"{self.host} ({self.address}) {', '.join(parts)}{'' if self.takes_jobs else ', takes no jobs'}"


class ResourceRequest(NamedTuple):
    """`cpus`, `gpus`, `neuron_cores`: how many; `memory_bytes`: held back for it; `whole`: a node to itself."""

    cpus: int = 0
    gpus: int = 0
    neuron_cores: int = 0
    memory_bytes: int = 0
    whole: bool = False

    @property
    def resources(self) -> dict[str, float]:
        """Return the resources by the names that nodes have for them."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "neuron_cores": self.neuron_cores, "memory": self.memory_bytes}
        return {name: float(number) for name, number in amounts.items() if number} | {
            RESOURCE: 1.0 if self.whole else SHARE
        }

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a Ray actor."""
        own = {RESOURCE: 1.0 if self.whole else SHARE} | (
            {"neuron_cores": self.neuron_cores} if self.neuron_cores else {}
        )
        memory = {"memory": self.memory_bytes} if self.memory_bytes else {}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": own, **memory}


def make_request(spec: JobSpec, claim: Claim, nodes: Sequence[Node]) -> ResourceRequest:
    """Make the request of a job.

    A measurement: a node to itself, with as many GPUs as a variant is spread over if the cluster has such nodes, and
    with as many Neuron cores as a variant was compiled for. Another job: accelerators as its plan has them, its memory,
    the cores that were requested or up to CORES.
    """
    able = [node.resources for node in nodes if node.takes_jobs]
    needs = spec.accelerators
    # A measurement.
    if claim.whole:
        there = any(node.get("GPU", 0.0) >= needs.gpus for node in able)
        return ResourceRequest(
            cpus=claim.cores or 0,
            gpus=needs.gpus if there else 0,
            neuron_cores=needs.neuron_cores,
            memory_bytes=claim.memory_bytes,
            whole=True,
        )
    # Another job.
    most = int(max((node.get("CPU", 0.0) for node in able), default=CORES))
    return ResourceRequest(
        cpus=claim.cores or max(1, min(CORES, most)),
        gpus=needs.gpus,
        neuron_cores=needs.neuron_cores,
        memory_bytes=claim.memory_bytes,
    )


def waiting_reason(request: ResourceRequest, nodes: Sequence[Node]) -> str:
    """Return why a keeper is not placed yet, to follow the word `waits`."""
    amounts = request.resources
    request_text = "a node to itself" if request.whole else _words(request)
    if any(
        node.takes_jobs and all(node.resources.get(name, 0.0) >= number for name, number in amounts.items())
        for node in nodes
    ):
        return f"for {request_text}: those that have it are taken"
    if not any(node.takes_jobs for node in nodes):
        return f"for {request_text}: {NOBODY}"
    return f"for {request_text}, which no node of the cluster has"


def _words(request: ResourceRequest) -> str:
    """Return the request in words."""
    parts = [f"{request.cpus} core{'s' if request.cpus != 1 else ''}"] if request.cpus else []
    parts += [f"{request.gpus} GPU{'s' if request.gpus != 1 else ''}"] if request.gpus else []
    parts += [f"{request.neuron_cores} Neuron cores"] if request.neuron_cores else []
    parts += [f"{request.memory_bytes / 1e9:.1f} GB of memory"] if request.memory_bytes else []
    return f"a node with {listed(parts)}"
