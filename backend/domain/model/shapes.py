"""The matrices of a decoder: how many parameters can be quantized, and how wide each kind is. Pure arithmetic over the
facts.

The decoder layer's linears are counted from the shapes, so what is left (norms, biases, positions) is exact wherever
the total is. tests/unit/domain/planner/test_planner_sizes.py holds this for every bundled row.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from backend.domain.model.facts import ModelFacts

GATED_TYPES = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "cohere", "phi3"})
"""Model types whose MLP has three matrices, for cards that do not say."""
UNEXPLAINED = 0.02
"""Largest share of the parameters that may be neither matrix nor embedding for the shapes to be believed."""


class Linear(NamedTuple):
    """One kind of matrix of a decoder layer: `copies` of it in a layer, each `inputs` x `outputs`."""

    name: str
    inputs: int
    outputs: int
    copies: int = 1

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.copies


class Sizes(NamedTuple):
    """Parameters by what becomes of them. `channels` is the sum of the linears' output widths."""

    embedding: int
    head: int
    """0 where the head is the embedding."""
    linears: int
    active_linears: int
    """Parameters that one token passes through: of experts only the chosen ones."""
    other: int
    channels: int


# Both are kept: they are asked for thousands of times when a model is held against all instances.
@lru_cache(maxsize=1024)
def linears(model: ModelFacts) -> tuple[Linear, ...]:
    """The quantizable matrices of one decoder layer. An expert model's router is not among them: it stays 16-bit."""
    gated = model.model_type in GATED_TYPES if model.gated_mlp is None else model.gated_mlp
    hidden, queries, keys = model.hidden_size, model.heads * model.head_dim, model.kv_heads * model.head_dim
    copies = model.experts or 1
    return (
        Linear("query", hidden, queries),
        Linear("key and value", hidden, keys, 2),
        Linear("output", queries, hidden),
        Linear("up", hidden, model.intermediate_size, (2 if gated else 1) * copies),
        Linear("down", model.intermediate_size, hidden, copies),
    )


GROUP_SIZES = (128, 64, 32)
"""The usual group sizes, the largest first; the first is the default of methods that quantize in groups."""


def undivided(group: int, model: ModelFacts) -> tuple[Linear, ...]:
    """The matrices whose inputs the group size does not divide: no format stores them in such groups."""
    return tuple(shape for shape in linears(model) if not divides(group, shape.inputs))


def usual_group(model: ModelFacts) -> int | None:
    """The largest usual group size that divides the inputs of every matrix; None where none does."""
    return next((size for size in GROUP_SIZES if not undivided(size, model)), None)


def groups_by_distance(size: int) -> list[int]:
    """Return the usual group sizes, nearest to `size` first, by their ratio."""
    return sorted(GROUP_SIZES, key=lambda group: abs(math.log(group / size)))


def divides(group: int, inputs: int) -> bool:
    """Return whether the inputs of a matrix fall into groups of that size without a rest."""
    return inputs % group == 0


@lru_cache(maxsize=1024)
def fused(model: ModelFacts, degree: int = 1) -> tuple[tuple[Linear, ...], ...]:
    """The matrices of one decoder layer by what vLLM holds as one, as they are on each of `degree` devices.

    Matrices that read the same input are one (vLLM 0.32, QKVParallelLinear and MergedColumnParallelLinear). Attention's
    output matrix and the MLP's are cut along their inputs, the others along their outputs. KV heads are copied where
    there are fewer than devices.
    """
    query, key, output, up, down = linears(model)
    kv_rows = max(model.kv_heads // degree, 1) * model.head_dim
    return (
        (query._replace(outputs=query.outputs // degree), key._replace(outputs=kv_rows)),
        (output._replace(inputs=output.inputs // degree),),
        (up._replace(outputs=up.outputs // degree),),
        (down._replace(inputs=down.inputs // degree),),
    )


@lru_cache(maxsize=1024)
def sizes(model: ModelFacts) -> Sizes:
    """Return where the shapes do not explain the total (an architecture we do not know), all but the embeddings counts
    as linears."""
    matrices = linears(model)
    embedding = model.vocabulary * model.hidden_size
    stored = not model.tied_embeddings if model.stored_head is None else model.stored_head
    head = embedding if stored else 0
    counted = model.layers * sum(matrix.parameters for matrix in matrices)
    parameters = model.parameters - model.outside_parameters
    other = parameters - embedding - head - counted
    if not 0 <= other <= max(UNEXPLAINED * parameters, model.layers * 20 * model.hidden_size):
        counted, other = max(parameters - embedding - head, 0), 0
    channels = model.layers * sum(matrix.outputs * matrix.copies for matrix in matrices)
    active = _active(model, matrices, counted)
    return Sizes(embedding, head, counted, active, other + model.outside_parameters, channels)


def _active(model: ModelFacts, matrices: tuple[Linear, ...], counted: int) -> int:
    if not model.experts or not model.experts_per_token:
        return counted
    of_experts = model.expert_parameters
    if of_experts is None:
        of_experts = model.layers * sum(matrix.parameters for matrix in matrices if matrix.name in {"up", "down"})
    return counted - of_experts * (model.experts - model.experts_per_token) // model.experts
