"""The types of GGUF files that llama.cpp's quantizer is asked for, with the bits that their weights take.

Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` (src/llama-quant.cpp of llama.cpp 0c1e57098) and the
blocks of ggml-common.h. The name of a file type is that of most of its tensors; some kinds of matrices have more bits.
Mixtures of 8 experts have rules of their own there, which are not among these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import Linear, linears, sizes

GgufTypeName = Literal["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "iq4_xs", "q3_k_m", "q2_k"]
DEFAULT = "q4_k_m"
SOURCE = "llama.cpp 0c1e57098, tools/quantize/README.md"
SUPER_BLOCK, BLOCK = 256, 32
"""Weights of a block of the types in PART_TYPES, and of the others."""
MANY_QUERIES = 4
"""Query heads a key head from which values have more bits in some types."""
BITS = {
    "Q2_K": 2.625,
    "Q3_K": 3.4375,
    "IQ4_XS": 4.25,
    "Q4_K": 4.5,
    "Q4_0": 4.5,
    "IQ4_NL": 4.5,
    "Q4_1": 5.0,
    "Q5_K": 5.5,
    "Q5_0": 5.5,
    "Q5_1": 6.0,
    "Q6_K": 6.5625,
    "Q8_0": 8.5,
}
"""Bits a weight of each type of tensor, scales included."""
PART_TYPES = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""The type that llama.cpp takes instead where rows are no multiple of SUPER_BLOCK."""
_VALUES, _OUTPUT, _DOWN = "key and value", "output", "down"
_NO_ROLES: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class GgufType(NamedTuple):
    """`main` is the type of most tensors. `roles`: kinds of matrices (`shapes.linears`) that have others, each type
    as often as its share; `grouped`: those of models with MANY_QUERIES or more.

    Keys and values are one kind, half of it each.
    """

    title: str
    nominal: int
    main: str
    roles: Mapping[str, tuple[str, ...]] = _NO_ROLES
    grouped: Mapping[str, tuple[str, ...]] = _NO_ROLES
    uses_imatrix: bool = True
    """The importance matrix changes what is stored."""

    @property
    def block(self) -> int:
        """Weights of a block of most tensors."""
        return SUPER_BLOCK if self.main in PART_TYPES else BLOCK


def _half_raised(main: str) -> dict[str, tuple[str, ...]]:
    """Return the roles of the types ending in M: the first and last eighth of layers, and every third between them."""
    return {_VALUES: (main, main, main, "Q6_K"), _DOWN: (main, "Q6_K")}


TYPES: dict[str, GgufType] = {
    "q4_k_m": GgufType("Q4_K_M", 4, "Q4_K", _half_raised("Q4_K")),
    "q5_k_m": GgufType("Q5_K_M", 5, "Q5_K", _half_raised("Q5_K")),
    "q6_k": GgufType("Q6_K", 6, "Q6_K"),
    "q4_0": GgufType("Q4_0", 4, "Q4_0", {_DOWN: ("Q4_1", *["Q4_0"] * 7)}),
    "q8_0": GgufType("Q8_0", 8, "Q8_0", uses_imatrix=False),
    "iq4_xs": GgufType("IQ4_XS", 4, "IQ4_XS", grouped={_VALUES: ("IQ4_XS", "Q5_K")}),
    "q3_k_m": GgufType(
        "Q3_K_M",
        3,
        "Q3_K",
        {
            _VALUES: (*["Q3_K"] * 16, "Q5_K", *["Q4_K"] * 15),
            _OUTPUT: ("Q4_K",),
            _DOWN: ("Q5_K", *["Q4_K"] * 15),
        },
    ),
    "q2_k": GgufType(
        "Q2_K",
        2,
        "Q2_K",
        {_VALUES: ("Q2_K", "Q3_K"), _OUTPUT: ("Q3_K",), _DOWN: ("Q3_K",)},
        {_VALUES: ("Q2_K", "Q4_K")},
    ),
}


def tensor_types(model: ModelFacts, name: str) -> frozenset[str]:
    """Return the types of the tensors in a file of that type of the model; norms are F32."""
    types = {"F32", *_table_types(model, name)}
    for shape in linears(model):
        types |= {*_stored_types(model, name, shape)}
    return frozenset(types)


def linear_bits(model: ModelFacts, name: str) -> float:
    """Return the bits of a weight on average over the linears of the model."""
    stored, counted = 0.0, 0
    for shape in linears(model):
        types = _stored_types(model, name, shape)
        stored += sum(BITS[kind] for kind in types) / len(types) * shape.parameters
        counted += shape.parameters
    return stored / max(counted, 1)


def table_bits(model: ModelFacts, name: str) -> tuple[float, float]:
    """Return the bits of a weight of the embedding and of the output head; a tied embedding is stored as the head."""
    embedding, output = _table_types(model, name)
    return BITS[embedding], BITS[output]


def odd_widths(model: ModelFacts, name: str) -> list[int]:
    """Return the lengths of rows that are no multiple of a block."""
    return sorted({shape.inputs for shape in linears(model) if shape.inputs % TYPES[name].block})


def _stored_types(model: ModelFacts, name: str, shape: Linear) -> tuple[str, ...]:
    """Return the types of one kind of matrix, each as often as its share."""
    known = TYPES[name]
    types = known.roles.get(shape.name, (known.main,))
    if model.heads >= MANY_QUERIES * model.kv_heads:
        types = known.grouped.get(shape.name, types)
    return tuple(_fitting(kind, shape.inputs) for kind in types)


def _table_types(model: ModelFacts, name: str) -> tuple[str, str]:
    """Return the types of the embedding and of the output head."""
    main, width = TYPES[name].main, model.hidden_size
    output = main if main == "Q8_0" else _fitting("Q6_K", width)
    return (_fitting(main, width) if sizes(model).head else output), output


def _fitting(kind: str, width: int) -> str:
    """Return the type in which rows of this width are stored."""
    return PART_TYPES[kind] if kind in PART_TYPES and width % SUPER_BLOCK else kind
