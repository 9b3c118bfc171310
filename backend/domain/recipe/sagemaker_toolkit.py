"""Stacking table and instance families that the managed SageMaker toolkit accepts, as data.

Gathered from aws/sagemaker-python-sdk a248126 (2026-08-21) and botocore 1.44.5. Our own engines accept more; a
`sagemaker:` target must keep to this. Knows nothing of memory or speed.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from backend.domain.recipe.recipe import Quantize, Recipe, Speculate

SDK = "aws/sagemaker-python-sdk a248126 (2026-08-21), what the toolkit stacks"
FAMILIES: dict[str, tuple[str, ...]] = {"cuda": ("p4d", "p4de", "p5", "g5", "g6"), "neuron": ("inf2", "trn1", "trn1n")}
"""Instance families that an optimization job accepts, by hardware."""

Part = Literal["weights", "smoothquant", "speculate", "compile", "shard", "other"]
"""The table's word for a step: `weights` is awq or fp8, `other` anything the toolkit does not have."""


class ToolkitStack(NamedTuple):
    """One row of the table. `gpu` and `neuron` are None where it is accepted, else what to do instead."""

    parts: frozenset[Part]
    gpu: str | None
    neuron: str | None
    note: str | None = None


def _row(parts: list[Part], gpu: str | None, neuron: str | None, note: str | None = None) -> ToolkitStack:
    return ToolkitStack(frozenset(parts), gpu, neuron, note)


_GPU_ONLY = "on Inferentia and Trainium it only compiles: leave the other steps out, or use a GPU instance"
_ALONE = "sharding and every other step exclude each other: keep one"
_NO_SPECULATION = "compile and speculative decoding exclude each other there: keep one"
NO_JOB = "Speculative decoding alone needs no optimization job there: it costs nothing and is set up at deployment."

TABLE: tuple[ToolkitStack, ...] = (
    _row([], None, None, "No steps: the model is deployed as it is, without an optimization job."),
    _row(["weights"], None, _GPU_ONLY),
    _row(["weights", "speculate"], None, _GPU_ONLY),
    _row(["speculate"], None, _GPU_ONLY, NO_JOB),
    _row(
        ["compile"], None, None, "Compiled by TensorRT-LLM on a GPU, by the Neuron compiler on Inferentia and Trainium."
    ),
    _row(["compile", "weights"], None, _GPU_ONLY),
    _row(["compile", "smoothquant"], None, _GPU_ONLY),
    _row(["smoothquant"], "smoothquant needs `compile` beside it: add it", _GPU_ONLY),
    _row(["compile", "speculate"], _NO_SPECULATION, _GPU_ONLY),
    _row(["shard"], None, "sharding is for GPU instances: leave it out"),
)
"""The rows that the toolkit states. What contains `other`, or `shard` beside anything, or is not here, is refused."""


def part_of(step: Any) -> Part:
    """Return the table's word for a step."""
    match step:
        case Quantize(method="awq" | "fp8"):
            return "weights"
        case Quantize(method="smoothquant"):
            return "smoothquant"
        case Speculate(method="draft" | "eagle3"):
            return "speculate"
        case _:
            return step.technique if step.technique in {"compile", "shard"} else "other"


def find_stack(recipe: Recipe, hardware: str) -> tuple[ToolkitStack | None, str | None]:
    """Return (the row of the recipe, the sentence by which it is refused there); (row, None) where it is accepted."""
    row, why = _find_row(recipe, hardware)
    return row, None if why is None else f"The SageMaker toolkit refuses this: {why}."


def _find_row(recipe: Recipe, hardware: str) -> tuple[ToolkitStack | None, str | None]:
    parts = frozenset(part_of(step) for step in recipe.steps)
    if "other" in parts:
        return None, f"{_others(recipe)} is not among its techniques: use awq, fp8, a draft model or compile"
    row = next((row for row in TABLE if row.parts == parts), None)
    if row is not None:
        return row, row.neuron if hardware == "neuron" else row.gpu
    if "shard" in parts:
        return None, _ALONE
    both = {"compile", "speculate"} <= parts
    return None, _NO_SPECULATION if both else "this combination is not in its table: keep fewer steps"


def _others(recipe: Recipe) -> str:
    step = next(step for step in recipe.steps if part_of(step) == "other")
    return " ".join(filter(None, (step.technique, getattr(step, "method", None))))


def accepts_instance(instance_family: str, optimization_job: bool, hardware: str) -> bool:
    """Return whether an optimization job can be started for that instance."""
    return optimization_job and instance_family in FAMILIES.get(hardware, ())
