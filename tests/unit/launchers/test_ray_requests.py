"""What jobs ask of a cluster, in Ray's own resources, and what they wait for."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.claims import Capacity, Claim, allocate, fits, make_grant
from backend.domain.jobs.jobs import EvaluateSpec, InstallSpec, OptimizeSpec
from backend.domain.recipe.recipe import Recipe, Serving
from backend.domain.rules.plan import Plan
from backend.launchers.cluster import requests
from backend.launchers.cluster.requests import HOW, NOBODY, RESOURCE, Node, ResourceRequest
from tests.small_artifacts import CARD

SMALL = Node("a", "small", "10.0.0.2", True, {"CPU": 2.0, "memory": 8e9, RESOURCE: 1.0})
BIG = Node("b", "big", "10.0.0.3", True, {"CPU": 64.0, "GPU": 8.0, "memory": 512e9, RESOURCE: 1.0})
NEURON = Node("c", "inf", "10.0.0.4", True, {"CPU": 8.0, "neuron_cores": 2.0, "memory": 32e9, RESOURCE: 1.0})
HEAD = Node("d", "head", "10.0.0.1", True, {"memory": 8e9})
DEAD = BIG._replace(id="e", alive=False)


def optimize(hardware: str = "cpu", spread: int = 1, target: str = "local") -> OptimizeSpec:
    plan = Plan(hardware=hardware, steps=(), tensor_parallel=spread)  # type: ignore[arg-type]
    return OptimizeSpec(
        model=CARD, recipe=Recipe(name="none", steps=()), plan=plan, target=target, calibration_path="/data/text.jsonl"
    )


def evaluate(spread: int = 1, neuron: dict[str, Any] | None = None) -> EvaluateSpec:
    serving = Serving(tensor_parallel=spread)
    variant = Variant(
        name="a",
        source="a",
        kind="model",
        model_path="/models/a",
        original_path="/models/b",
        serving=serving,
        neuron=neuron,
    )
    return EvaluateSpec(variants=(variant,), options=EvaluateOptions(tasks=("/tasks/one.yaml", "next-line")))


@pytest.mark.parametrize(
    ("spec", "claim", "nodes", "expected"),
    [
        (optimize(), Claim(memory_bytes=6 << 30), [BIG], {"CPU": 4.0, "memory": 6.0 * (1 << 30), RESOURCE: 0.001}),
        (optimize(), Claim(), [SMALL, HEAD, DEAD], {"CPU": 2.0, RESOURCE: 0.001}),
        (optimize(), Claim(cores=7), [SMALL], {"CPU": 7.0, RESOURCE: 0.001}),
        (optimize("cuda", 2), Claim(), [BIG], {"CPU": 4.0, "GPU": 2.0, RESOURCE: 0.001}),
        (optimize("neuron", 2, "local:neuron"), Claim(), [NEURON], {"CPU": 4.0, "neuron_cores": 2.0, RESOURCE: 0.001}),
        (optimize("neuron", 24, "neuron:ml.inf2.48xlarge"), Claim(), [NEURON], {"CPU": 4.0, RESOURCE: 0.001}),
        (evaluate(2, {"tensor_parallel": 2}), Claim(whole=True), [NEURON, BIG], {"neuron_cores": 2.0, RESOURCE: 1.0}),
        (evaluate(), Claim(whole=True), [SMALL], {RESOURCE: 1.0}),
        (evaluate(4), Claim(whole=True), [SMALL, BIG], {"GPU": 4.0, RESOURCE: 1.0}),
        (evaluate(4), Claim(whole=True), [SMALL, DEAD], {RESOURCE: 1.0}),
    ],
)
def test_requests(
    spec: OptimizeSpec | EvaluateSpec, claim: Claim, nodes: list[Node], expected: dict[str, float]
) -> None:
    assert requests.make_request(spec, claim, nodes).resources == expected


def test_ray_is_given_the_same_by_its_own_names() -> None:
    options = ResourceRequest(cpus=4, gpus=1, neuron_cores=2, memory_bytes=10).options
    assert options == {"num_cpus": 4, "num_gpus": 1, "memory": 10, "resources": {RESOURCE: 0.001, "neuron_cores": 2}}
    assert ResourceRequest(whole=True).options == {"num_cpus": 0, "num_gpus": 0, "resources": {RESOURCE: 1.0}}


@pytest.mark.parametrize(
    ("request_", "nodes", "expected"),
    [
        (ResourceRequest(cpus=2), [SMALL], "for a node with 2 cores: those that have it are taken"),
        (
            ResourceRequest(cpus=4, gpus=1),
            [SMALL, DEAD],
            "for a node with 4 cores and 1 GPU, which no node of the cluster has",
        ),
        (
            ResourceRequest(cpus=1, neuron_cores=2, memory_bytes=9_000_000_000),
            [SMALL],
            "for a node with 1 core, 2 Neuron cores and 9.0 GB of memory, which no node of the cluster has",
        ),
        (ResourceRequest(whole=True), [SMALL], "for a node to itself: those that have it are taken"),
        (ResourceRequest(cpus=1), [HEAD, DEAD], f"for a node with 1 core: {NOBODY}"),
    ],
)
def test_what_a_job_waits_for(request_: ResourceRequest, nodes: list[Node], expected: str) -> None:
    assert requests.waiting_reason(request_, nodes) == expected and RESOURCE in HOW


def test_every_file_that_a_job_reads_is_known() -> None:
    assert optimize().paths == {CARD.path, "/data/text.jsonl"}
    assert evaluate().paths == {"/models/a", "/models/b", "/tasks/one.yaml"}
    assert InstallSpec(engine="serve").paths == set()


def test_a_cluster_job_takes_nothing_of_this_machine_while_the_cluster_accepts() -> None:
    measuring, room = Claim(whole=True, movable=True), Capacity(cores=2, cluster=4)
    assert fits([measuring, measuring, Claim()], room) and allocate(measuring, room, ["core0"]) == []
    assert not fits([measuring, measuring], Capacity(cores=2)), "without a cluster it has this machine to itself"
    assert (
        make_grant([], room, measuring).claim == measuring
        and make_grant(["core0"], Capacity(cores=2), Claim()).claim is None
    )
