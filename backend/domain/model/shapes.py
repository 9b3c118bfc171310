"""The matrices of a decoder: how many parameters can be quantized, and how wide each kind is. Pure arithmetic over the facts.

The decoder layer's linears are counted from the shapes, so what is left (norms, biases, positions) is exact wherever the
total is. tests/unit/domain/planner/test_planner_sizes.py holds this for every bundled row.
"""

from __future__ import annotations

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
    """Those that one token passes through: with experts only the chosen ones."""
    other: int
    channels: int


class _Shape(NamedTuple):
    """What the sizes depend on. They are asked for thousands of times when a model is held against all instances."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    parameters: int
    head: bool
    gated: bool
    experts: int | None
    experts_per_token: int | None
    expert_parameters: int | None
    outside: int


def linears(model: ModelFacts) -> tuple[Linear, ...]:
    """The quantizable matrices of one decoder layer. An expert model's router is not among them: it stays 16-bit."""
    return _linears(_shape(model))


def sizes(model: ModelFacts) -> Sizes:
    """Where the shapes do not explain the total (an architecture we do not know), all but the embeddings counts as linears."""
    return _sizes(_shape(model))


def _shape(model: ModelFacts) -> _Shape:
    gated = model.model_type in GATED_TYPES if model.gated_mlp is None else model.gated_mlp
    head = not model.tied_embeddings if model.stored_head is None else model.stored_head
    return _Shape(
        model.layers, model.hidden_size, model.intermediate_size, model.heads, model.kv_heads, model.head_dim, model.vocabulary,
        model.parameters, head, gated, model.experts, model.experts_per_token, model.expert_parameters,
        model.outside_parameters,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _linears(shape: _Shape) -> tuple[Linear, ...]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    copies = shape.experts or 1
    return (
        Linear("query", shape.hidden, queries),
        Linear("key and value", shape.hidden, keys, 2),
        Linear("output", queries, shape.hidden),
        Linear("up", shape.hidden, shape.intermediate, (2 if shape.gated else 1) * copies),
        Linear("down", shape.intermediate, shape.hidden, copies),
    )


@lru_cache(maxsize=1024)
def _sizes(shape: _Shape) -> Sizes:
    matrices = _linears(shape)
    embedding = shape.vocabulary * shape.hidden
    head = embedding if shape.head else 0
    counted = shape.layers * sum(matrix.parameters for matrix in matrices)
    parameters = shape.parameters - shape.outside
    other = parameters - embedding - head - counted
    if not 0 <= other <= max(UNEXPLAINED * parameters, shape.layers * 20 * shape.hidden):
        counted, other = max(parameters - embedding - head, 0), 0
    channels = shape.layers * sum(matrix.outputs * matrix.copies for matrix in matrices)
    return Sizes(embedding, head, counted, _active(shape, matrices, counted), other + shape.outside, channels)


def _active(shape: _Shape, matrices: tuple[Linear, ...], counted: int) -> int:
    if not shape.experts or not shape.experts_per_token:
        return counted
    of_experts = shape.expert_parameters
    if of_experts is None:
        of_experts = shape.layers * sum(matrix.parameters for matrix in matrices if matrix.name in {"up", "down"})
    return counted - of_experts * (shape.experts - shape.experts_per_token) // shape.experts
