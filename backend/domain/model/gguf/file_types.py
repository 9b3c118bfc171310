"""The types of GGUF files that llama.cpp's quantizer is asked for, with the bits that their weights take.

Source: `llama_tensor_get_type` (src/llama-quant.cpp of llama.cpp 0c1e57098) and the blocks of ggml-common.h. Half of
the down projections of the types ending in M have more bits; rows that are no multiple of a block have another type.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears, sizes

GgufTypeName = Literal["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k"]
DEFAULT = "q4_k_m"
SOURCE = "llama.cpp 0c1e57098, tools/quantize/README.md"
SUPER_BLOCK = 256
"""Weights of a block of the K types."""
_Q4_0, _Q4_K, _Q5_0, _Q5_K, _Q5_1, _Q6_K, _Q8_0 = 4.5, 4.5, 5.5, 5.5, 6.0, 6.5625, 8.5
"""Bits a weight, scales included."""


class GgufType(NamedTuple):
    """`bits` of most weights, `raised` of half of the down projections, `output` of the output head: bits a weight.

    `odd` and `odd_raised` take the place of the first two where rows are no multiple of `block`.
    """

    title: str
    nominal: int
    block: int
    bits: float
    raised: float
    output: float
    odd: float
    odd_raised: float
    uses_imatrix: bool = True
    """The importance matrix changes what is stored."""


TYPES: dict[str, GgufType] = {
    "q4_k_m": GgufType("Q4_K_M", 4, SUPER_BLOCK, _Q4_K, _Q6_K, _Q6_K, _Q5_0, _Q8_0),
    "q5_k_m": GgufType("Q5_K_M", 5, SUPER_BLOCK, _Q5_K, _Q6_K, _Q6_K, _Q5_1, _Q8_0),
    "q6_k": GgufType("Q6_K", 6, SUPER_BLOCK, _Q6_K, _Q6_K, _Q6_K, _Q8_0, _Q8_0),
    "q4_0": GgufType("Q4_0", 4, 32, _Q4_0, _Q4_0, _Q6_K, _Q4_0, _Q4_0),
    "q8_0": GgufType("Q8_0", 8, 32, _Q8_0, _Q8_0, _Q8_0, _Q8_0, _Q8_0, uses_imatrix=False),
}
OTHER_TYPES = {"q4_k_m": "Q5_0", "q5_k_m": "Q5_1", "q6_k": "Q8_0"}
"""The type that llama.cpp takes instead where rows are no multiple of a block."""

TENSOR_TYPES = {
    "q4_k_m": ("Q4_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K"),
    "q6_k": ("Q6_K",),
    "q4_0": ("Q4_0",),
    "q8_0": ("Q8_0",),
}
"""The types of the linears in a file, where rows are a multiple of a block."""


def tensor_types(model: ModelFacts, name: str) -> frozenset[str]:
    """Return the types of the tensors in a file of that type of the model; norms are F32."""
    types = {"F32", *TENSOR_TYPES[name]}
    if odd_widths(model, name):  # the second takes the place of the raised ones
        types |= {OTHER_TYPES[name], "Q8_0"}
    if name != "q8_0":
        types.add("Q8_0" if model.hidden_size % SUPER_BLOCK else "Q6_K")
    return frozenset(types)


def linear_bits(model: ModelFacts, name: str) -> float:
    """Return the bits of a weight on average over the linears of the model."""
    known, stored, counted = TYPES[name], 0.0, 0
    for shape in linears(model):
        whole = shape.inputs % known.block == 0
        bits, raised = (known.bits, known.raised) if whole else (known.odd, known.odd_raised)
        average = (bits + raised) / 2 if shape.name == "down" else bits
        stored += average * shape.parameters
        counted += shape.parameters
    return stored / max(counted, 1)


def table_bits(model: ModelFacts, name: str) -> tuple[float, float]:
    """Return the bits of a weight of the embedding and of the output head; a tied embedding is stored as the head."""
    known = TYPES[name]
    whole = model.hidden_size % known.block == 0
    output = known.output if model.hidden_size % SUPER_BLOCK == 0 else _Q8_0
    embedding = known.bits if whole else known.odd
    return (embedding if sizes(model).head else output), output


def odd_widths(model: ModelFacts, name: str) -> list[int]:
    """Return the lengths of rows that are no multiple of a block."""
    return sorted({shape.inputs for shape in linears(model) if shape.inputs % TYPES[name].block})
