"""Costs of an engine on a kind of hardware beside the model's own bytes: memory, time to ready, shares of the rates.

Data with sources; a row exists for what was measured, or assumed and said so. Knows nothing of models.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.machine.device import Device, Hardware
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.serving_engines import SERVED, EngineName

Range = tuple[float, float]


class Efficiency(NamedTuple):
    """(best, worst) shares of the peak that are reached, and the fixed cost of a step in seconds."""

    bandwidth: Range
    arithmetic: Range
    step: Range
    all_reduce: Range
    """Latency of one all-reduce, in seconds."""


class EngineCosts(NamedTuple):
    """(least, most) of each. Shares are of the rates that the probe measured on a processor, else of a datasheet."""

    efficiency: Efficiency
    runtime_bytes: tuple[int, int]
    """Memory of its processes beside weights, cache and the buffers of a step."""
    ready_seconds: Range | None
    """From the command until it answers, reading the weights left out; None where no start was timed."""
    pooled: bool
    """Its slots share one pool of cache, reserved at the start; else what the memory leaves is the cache."""
    source: str
    """Source of the figures, in words that follow `from`."""


READ_RATE: Range = (2e9, 0.1e9)
"""(best, worst) bytes/s at which weights are read at a start: from the page cache, and from a slow disk. An
assumption."""
NOMINAL = Efficiency((0.9, 0.5), (0.7, 0.3), (0.0002, 0.003), (5e-6, 40e-6))
"""Shares of a GPU's or Neuron core's datasheet. Assumptions: this project has measured no accelerator yet."""
MEASURED = Efficiency((1.0, 0.8), (1.0, 0.5), (0.0005, 0.012), (0.0, 0.0))
"""Shares of the best that the probe measured on a processor, so nothing is above it. 0.8 is what a typical repetition
of the probe's own matrix-vector product reaches of its best. A step of vLLM took 9 to 12 ms beyond reading the weights
of a model of 135 M parameters, and 3 ms or less in the middle of benchmarks/results/planner.md."""
LLAMA_CPP = Efficiency((1.0, 0.5), (0.45, 0.08), (0.0002, 0.002), (0.0, 0.0))
"""Shares of the same probe. A prompt of 117 tokens took 166 ms for 25 GFLOP where the probe had 0.45 to 0.94 TFLOP/s in
bfloat16: 0.17 to 0.35 of it, a little wider here. A token took 9.3 ms for 145 MB, 0.5 of the probe's 30 GB/s."""
OPENVINO = Efficiency((1.0, 0.4), (0.7, 0.15), (0.001, 0.012), (0.0, 0.0))
"""Shares of the same probe. A prompt of 117 tokens took 110 ms: 0.27 to 0.55 of it. A token took 15.4 ms for 145 MB
through a Python server, 9.3 to 9.9 ms in process, where reading them takes 5."""
GPU_RUNTIME = (100_000_000, 800_000_000)
"""Memory of the CUDA context, NCCL and captured graphs. An assumption, not measured here."""
NEURON_RUNTIME = (2_000_000_000, 3_000_000_000)
"""Per core. The tutorial's neuron-top listing shows 1.5 GB of model code and 1.0 GB of scratchpad."""

COSTS: dict[tuple[EngineName, Hardware], EngineCosts] = {
    ("vllm", "cpu"): EngineCosts(
        MEASURED,
        (0, 1_500_000_000),
        (25.0, 100.0),
        False,
        "figures of vLLM 0.32 with SmolLM2-135M on two cores of an AMD EPYC",
    ),
    ("vllm", "cuda"): EngineCosts(
        NOMINAL, GPU_RUNTIME, None, False, "shares of the datasheet that are assumed, decision 0010"
    ),
    ("vllm", "neuron"): EngineCosts(
        NOMINAL, NEURON_RUNTIME, None, False, "shares of the datasheet that are assumed, decision 0010"
    ),
    ("llama.cpp", "cpu"): EngineCosts(
        LLAMA_CPP,
        (20_000_000, 120_000_000),
        (0.3, 2.0),
        True,
        "figures of llama.cpp 0c1e57098 with SmolLM2-135M on two cores of an AMD EPYC",
    ),
    ("openvino", "cpu"): EngineCosts(
        OPENVINO,
        (100_000_000, 500_000_000),
        (2.0, 8.0),
        False,
        "figures of OpenVINO GenAI 2026.4.1 with SmolLM2-135M on two cores of an AMD EPYC",
    ),
}


def reads_gguf(serving: Serving) -> bool:
    """Return whether the engine of these settings reads GGUF files and nothing else."""
    return {row.format for row in SERVED if row.engine == serving.engine_name} == {"gguf"}


def shares_pool(serving: Serving) -> bool:
    """Return whether the slots of the engine share one pool of cache."""
    return any(costs.pooled for (engine, _), costs in COSTS.items() if engine == serving.engine_name)


def find_costs(engine: EngineName, hardware: Hardware) -> EngineCosts | None:
    """Return the row of an engine on that hardware; None where nothing is known."""
    return COSTS.get((engine, hardware))


def efficiency(device: Device, engine: EngineName) -> Efficiency | None:
    """Return the shares to assume; None where nothing is known of that engine there. A processor whose rates are a
    datasheet's is taken like an accelerator."""
    costs = find_costs(engine, device.hardware)
    if costs is None:
        return None
    return costs.efficiency if device.measured else NOMINAL


def ready_seconds(engine: EngineName, hardware: Hardware, weight_bytes: int) -> Range | None:
    """Return the (least, most) seconds until a server answers; None where no start was timed on that hardware."""
    costs = find_costs(engine, hardware)
    if costs is None or costs.ready_seconds is None:
        return None
    least, most = costs.ready_seconds
    return least + weight_bytes / READ_RATE[0], most + weight_bytes / READ_RATE[1]
