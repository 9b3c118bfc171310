"""Which linears of a decoder layer share an input, and what feeds them: one row a family, no algorithm."""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.errors import ImpossibleStack


class Group(NamedTuple):
    """Linears that read the same input. Serving engines fuse them, so they are quantized all or none.

    `producer` computes that input up to an elementwise product without this channel's scale: the norm before, or the
    linear whose output channels are the input channels (repeated over the query heads of a KV head).
    """

    linears: tuple[str, ...]
    producer: str


class Family(NamedTuple):
    """Names are module paths; `layers` is the path of the list of decoder layers."""

    layers: str
    groups: tuple[Group, ...]


_LLAMA = Family(
    layers="model.layers",
    groups=(
        Group(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "input_layernorm"),
        Group(("self_attn.o_proj",), "self_attn.v_proj"),
        Group(("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"),
        Group(("mlp.down_proj",), "mlp.up_proj"),
    ),
)

FAMILIES: dict[str, Family] = {"llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA}
"""By `model_type` of config.json."""


def family_of(model_type: str) -> Family:
    """Raises ImpossibleStack for a family that has no row."""
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ImpossibleStack(f"The native engine cannot quantize models of type {model_type!r} yet: it knows {known}.")
    return FAMILIES[model_type]
