"""A table of model families: the linears of a decoder layer that share an input, and what feeds them. No algorithm.

Names are module paths inside a decoder layer as transformers builds it; `*` stands for every expert. Where checkpoints
name something differently, `stored` says how. A family with several layouts has several rows; the first whose `when`
the model's config meets is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ImpossibleStack

if TYPE_CHECKING:
    import torch

Layout = Callable[[Any], "torch.Tensor"]
"""Maps a model's config to the producer's output row for each input channel [in features]."""


class Group(NamedTuple):
    """Linears that read the same input. Serving engines fuse them, so they are quantized all or none.

    A group with experts may also name linears that every token passes through (a shared expert). `producer` computes
    that input up to an elementwise product without this channel's scale: the norm before (`layout` None), or the linear
    whose output rows are the input channels by `layout`. None: nothing that scales could be folded into. `others` read
    the same input and stay 16-bit (a router): what is folded into the norm is undone in their columns.
    """

    linears: tuple[str, ...]
    producer: str | None = None
    layout: Layout | None = None
    others: tuple[str, ...] = ()


class Experts(NamedTuple):
    """Experts that transformers keeps as tensors of three dimensions, and checkpoints as a linear each."""

    path: str
    gate: str
    up: str
    down: str


class Family(NamedTuple):
    """`layers` is the module path of the list of decoder layers, `norm` of what stands between the last one and the
    output head, `head` what checkpoints call that head."""

    groups: tuple[Group, ...]
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    norm_offset: float = 0.0
    """Number that the norms add to their weight (Gemma: 1)."""
    stored: tuple[tuple[str, str], ...] = ()
    """Renames inside a layer: as checkpoints have it, as the module is called."""
    experts: Experts | None = None
    transposed: bool = False
    """Weights are stored [in, out] (GPT-2's Conv1D)."""
    attention: str = "self_attn"
    """The module that checkpoints hang the scales of the key-value cache on."""
    when: Mapping[str, Any] = {}
    """Config fields and their values."""


def _heads(config: Any) -> tuple[int, int, int]:
    """Query heads, heads of keys and values, size of a head."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, head_dim


def _rows(of_each_head: Callable[[int], int], config: Any) -> torch.Tensor:
    """Row index [heads x head size]: `of_each_head` gives the first row of the values of a query head."""
    import torch

    heads, _, head_dim = _heads(config)
    first = torch.tensor([of_each_head(head) for head in range(heads)])
    return (first[:, None] + torch.arange(head_dim)).flatten()


def values(config: Any) -> torch.Tensor:
    """A value projection of its own; a head of values may serve several query heads."""
    heads, kv_heads, head_dim = _heads(config)
    return _rows(lambda head: head // (heads // kv_heads) * head_dim, config)


def values_after_queries_and_keys(config: Any) -> torch.Tensor:
    """Fused [all queries, all keys, all values]."""
    heads, kv_heads, head_dim = _heads(config)
    return _rows(lambda head: (heads + kv_heads + head // (heads // kv_heads)) * head_dim, config)


def values_of_each_head(config: Any) -> torch.Tensor:
    """Fused [heads, (query, key, value), head size]."""
    return _rows(lambda head: (3 * head + 2) * _heads(config)[2], config)


def values_of_one_head(config: Any) -> torch.Tensor:
    """Fused [queries of all heads, one key, one value]."""
    heads, _, head_dim = _heads(config)
    return _rows(lambda head: (heads + 1) * head_dim, config)


def values_of_each_group(config: Any) -> torch.Tensor:
    """Fused [key-value heads, (their queries, key, value), head size]."""
    heads, head_dim = _heads(config)[::2]
    queries = heads // (getattr(config, "num_kv_heads", None) or heads)
    return _rows(lambda head: (head // queries * (queries + 2) + queries + 1) * head_dim, config)


def intermediate(config: Any) -> torch.Tensor:
    """Row by row: the intermediate features of a feed-forward, or of one expert."""
    import torch

    return torch.arange(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)


def shared_intermediate(config: Any) -> torch.Tensor:
    """Row by row: the intermediate features of the expert that every token passes through."""
    import torch

    return torch.arange(config.shared_expert_intermediate_size)


def after_gates(config: Any) -> torch.Tensor:
    """Fused [all gates, all ups]."""
    import torch

    return torch.arange(config.intermediate_size, 2 * config.intermediate_size)


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUTPUT = Group(("self_attn.o_proj",), "self_attn.v_proj", values)
_GATED = ("mlp.gate_proj", "mlp.up_proj")
_DOWN = Group(("mlp.down_proj",), "mlp.up_proj", intermediate)

_LLAMA = Family((Group(_QKV, "input_layernorm"), _OUTPUT, Group(_GATED, "post_attention_layernorm"), _DOWN))
_GEMMA = _LLAMA._replace(norm_offset=1.0)
_GEMMA_2 = _GEMMA._replace(
    groups=(Group(_QKV, "input_layernorm"), _OUTPUT, Group(_GATED, "pre_feedforward_layernorm"), _DOWN)
)
_COHERE = _LLAMA._replace(groups=(Group((*_QKV, *_GATED), "input_layernorm"), _OUTPUT, _DOWN))


def _experts(gate: str, up: str, down: str) -> Family:
    """Llama's attention, and experts of these linears behind a router."""
    every = "mlp.experts.*."
    fed = Group((every + gate, every + up), "post_attention_layernorm", others=("mlp.gate",))
    groups = (Group(_QKV, "input_layernorm"), _OUTPUT, fed, Group((every + down,), every + up, intermediate))
    return Family(groups, experts=Experts("mlp.experts", gate, up, down))


_MIXTRAL = _experts("w1", "w3", "w2")._replace(stored=(("block_sparse_moe.", "mlp."),))
_QWEN_MOE = _experts("gate_proj", "up_proj", "down_proj")._replace(
    when={"mlp_only_layers": [], "decoder_sparse_step": 1}
)
_SHARED = "mlp.shared_expert."
_ROUTED_QKV, _ROUTED_OUTPUT, _ROUTED_FED, _ROUTED_DOWN = _QWEN_MOE.groups
_QWEN_2_MOE = _QWEN_MOE._replace(
    groups=(
        _ROUTED_QKV,
        _ROUTED_OUTPUT,
        # The shared expert and its gate read what the routed experts read: one norm feeds them all.
        _ROUTED_FED._replace(
            linears=(*_ROUTED_FED.linears, _SHARED + "gate_proj", _SHARED + "up_proj"),
            others=(*_ROUTED_FED.others, "mlp.shared_expert_gate"),
        ),
        _ROUTED_DOWN,
        Group((_SHARED + "down_proj",), _SHARED + "up_proj", shared_intermediate),
    )
)
_PHI = Family(
    norm="model.final_layernorm",
    groups=(
        Group((*_QKV, "mlp.fc1"), "input_layernorm"),
        Group(("self_attn.dense",), "self_attn.v_proj", values),
        Group(("mlp.fc2",)),
    ),
)
_PHI_3 = Family(
    groups=(
        Group(("self_attn.qkv_proj",), "input_layernorm"),
        Group(("self_attn.o_proj",), "self_attn.qkv_proj", values_after_queries_and_keys),
        Group(("mlp.gate_up_proj",), "post_attention_layernorm"),
        Group(("mlp.down_proj",), "mlp.gate_up_proj", after_gates),
    ),
)
_GPT_2 = Family(
    layers="transformer.h",
    norm="transformer.ln_f",
    groups=(
        Group(("attn.c_attn",), "ln_1"),
        Group(("attn.c_proj",), "attn.c_attn", values_after_queries_and_keys),
        Group(("mlp.c_fc",), "ln_2"),
        Group(("mlp.c_proj",)),
    ),
    transposed=True,
    attention="attn",
)
_NEOX = Family(
    layers="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    groups=(
        Group(("attention.query_key_value",), "input_layernorm"),
        Group(("attention.dense",), "attention.query_key_value", values_of_each_head),
        Group(("mlp.dense_h_to_4h",), "post_attention_layernorm"),
        Group(("mlp.dense_4h_to_h",)),
    ),
    head="embed_out",
    attention="attention",
)


_BLOCKS = Family((), "transformer.h", "transformer.ln_f", attention="self_attention")


def _blocks(before_attention: str | None, before_mlp: str | None, layout: Layout) -> Family:
    """BLOOM and Falcon: one fused projection and a plain feed-forward; None where the norm's output is the residual
    too."""
    attention = Group(("self_attention.query_key_value",), before_attention)
    return _BLOCKS._replace(
        groups=(attention, _fused_output(layout), Group(("mlp.dense_h_to_4h",), before_mlp), _BLOCK_DOWN)
    )


def _parallel(layout: Layout) -> Family:
    """Falcon with one norm before attention and feed-forward at once."""
    both = Group(("self_attention.query_key_value", "mlp.dense_h_to_4h"), "input_layernorm")
    return _BLOCKS._replace(groups=(both, _fused_output(layout), _BLOCK_DOWN))


def _fused_output(layout: Layout) -> Group:
    return Group(("self_attention.dense",), "self_attention.query_key_value", layout)


_BLOCK_DOWN = Group(("mlp.dense_4h_to_h",))
_NORMS = ("input_layernorm", "post_attention_layernorm")
_BLOOM = (
    _blocks(None, None, values_of_each_head)._replace(when={"apply_residual_connection_post_layernorm": True}),
    _blocks(*_NORMS, values_of_each_head),
)
_FALCON = (
    _parallel(values_of_each_group)._replace(when={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    _blocks("ln_attn", "ln_mlp", values_of_each_group)._replace(when={"new_decoder_architecture": True}),
    _parallel(values_of_one_head)._replace(when={"parallel_attn": True, "multi_query": True}),
    _parallel(values_of_each_head)._replace(when={"parallel_attn": True}),
    _blocks(*_NORMS, values_of_one_head)._replace(when={"multi_query": True}),
    _blocks(*_NORMS, values_of_each_head),
)

FAMILIES: dict[str, tuple[Family, ...]] = {
    "llama": (_LLAMA,),
    "mistral": (_LLAMA,),
    "qwen2": (_LLAMA,),
    "qwen3": (_LLAMA,),
    "qwen2_moe": (_QWEN_2_MOE,),
    "qwen3_moe": (_QWEN_MOE,),
    "mixtral": (_MIXTRAL,),
    "gemma": (_GEMMA,),
    "gemma2": (_GEMMA_2,),
    "gemma3_text": (_GEMMA_2,),
    "phi": (_PHI,),
    "phi3": (_PHI_3,),
    "cohere": (_COHERE,),
    "cohere2": (_COHERE,),
    "gpt2": (_GPT_2,),
    "gpt_neox": (_NEOX,),
    "bloom": _BLOOM,
    "falcon": _FALCON,
}
"""Families by `model_type` of config.json."""


def family_of(model_type: str, config: Any) -> Family:
    """Return the row whose layout `config` (transformers') has. Raises ImpossibleStack if there is none."""
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ImpossibleStack(f"The native engine cannot quantize models of type {model_type!r} yet: it knows {known}.")
    for row in FAMILIES[model_type]:
        if all(getattr(config, field, None) == value for field, value in row.when.items()):
            return row
    expected = " and ".join(f"{field} {value}" for field, value in FAMILIES[model_type][-1].when.items())
    raise ImpossibleStack(
        f"The native engine knows models of type {model_type!r} only with {expected}: this one differs."
    )
