"""The plan of a compilation for Neuron (stack, shapes, precision, degree, flags) and the key of its cached result.

Pure. Knows nothing of files and of the libraries' classes.
"""

from __future__ import annotations

from typing import Any, Literal

from backend.domain.frozen import Frozen, digest
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving_memory
from backend.domain.neuron import cores, software_stacks
from backend.domain.neuron.software_stacks import StackName
from backend.domain.recipe.recipe import Compile, Quantize, Recipe, Speculate

SMALLEST = 128
"""transformers-neuronx, bucket.py: buckets are doubled from here on."""
AMP = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class CompilePlan(Frozen):
    """All that decides the compiled result, and the model's id, which does not. Tokens and sequences are counts."""

    stack: StackName
    model: str
    model_type: str
    model_hash: str | None
    """None for a model whose weights are not here."""
    accelerator: str
    target: str
    tensor_parallel: int
    batch: int
    positions: int
    context_buckets: tuple[int, ...]
    token_buckets: tuple[int, ...]
    dtype: str
    """bf16, f16 or f32."""
    weights: str | None = None
    """`int8`: stored as 8-bit integers."""
    cache: str | None = None
    """`fp8`: the key-value cache."""
    draft_method: Literal["draft", "eagle", "eagle3"] | None = None
    draft_hash: str | None = None
    draft_tokens: int | None = None
    prefix_cache: bool | None = None
    """Prefix caching of vLLM Neuron, where the recipe states it."""
    optimize_level: int | None = None
    compiler: str | None = None
    """Version of neuronx-cc; None where the stack's environment is not installed."""

    @property
    def fields(self) -> dict[str, Any]:
        """The key's fields."""
        return self.model_dump(mode="json", exclude={"model"})

    @property
    def key(self) -> str:
        """20 hex digits."""
        return digest(self.fields)[:20]


def make_compile_plan(
    model: ModelFacts, recipe: Recipe, device: Device, draft: ModelFacts | None = None, compiler: str | None = None
) -> CompilePlan:
    """Return the plan for a recipe that no rule refuses. Raises KeyError for an accelerator that is not known."""
    step, quantize, speculate = (recipe.step(name) for name in ("compile", "quantize", "speculate"))
    assert isinstance(step, Compile)
    stack = software_stacks.choose_stack(device.name, model.model_type, step.stack)
    assert stack is not None
    positions, batch = cores.positions(model, recipe), cores.batch_size(recipe)
    buckets = tuple(step.buckets or doubling_sizes(min(SMALLEST, positions), positions))
    return CompilePlan(
        stack=stack,
        model=model.id,
        model_type=model.model_type,
        model_hash=getattr(model, "revision", None),
        accelerator=device.name,
        target=cores.SILICON[device.name].target,
        tensor_parallel=recipe.serving.tensor_parallel,
        batch=batch,
        positions=positions,
        context_buckets=buckets,
        # vLLM Neuron's second dimension is sequences, not positions (num_seqs_buckets).
        token_buckets=tuple(doubling_sizes(1, batch)) if stack == "vllm-neuron" else buckets,
        dtype=AMP.get(recipe.serving.dtype, "bf16"),
        weights="int8" if isinstance(quantize, Quantize) else None,
        cache="fp8" if serving_memory.effective_serving(recipe).kv_cache_dtype == "fp8" else None,
        draft_method=speculate.method if isinstance(speculate, Speculate) else None,
        draft_hash=getattr(draft, "revision", None) if isinstance(speculate, Speculate) else None,
        draft_tokens=speculate.tokens if isinstance(speculate, Speculate) else None,
        prefix_cache=recipe.serving.prefix_caching if stack == "vllm-neuron" else None,
        optimize_level=step.optimize_level,
        compiler=compiler,
    )


def doubling_sizes(least: int, most: int) -> list[int]:
    """Return `least`, twice that, ..., `most`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]


def recipe_parts(recipe: Recipe) -> list[str]:
    """Return the recipe in the words of `NeuronStack.can`; what no stack has gets its own name."""
    names = [getattr(step, "method", step.technique) for step in recipe.steps]
    return [*names, *(["fp8-cache"] if recipe.serving.kv_cache_dtype == "fp8" else [])]
