"""Reads a model's architecture from config.json, whatever its family calls the fields. Knows nothing of weights.

Families name the same size differently (`n_embd`, `d_model`), and leave out what the class of their library fills in;
assets/architectures.json holds both, read from transformers (tests/architectures.py). Nothing else is filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model.facts import ASSUMED_CONTEXT
from backend.settings import ASSETS

CONTEXT = ("n_positions", "max_seq_len", "seq_length", "max_sequence_length")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
EXPERT_SIZE = ("moe_intermediate_size", "expert_ffn_hidden_size")
"""Field names of the number of experts per layer, the experts per token, and the width of one."""
INTERMEDIATE = ("n_inner", "ffn_dim", "ffn_hidden_size")
FOURFOLD = frozenset({"gpt2", "bloom", "falcon", "gptj", "gpt_neo", "gpt_bigcode", "codegen", "mpt"})
"""Types whose MLP is four times the hidden size where config.json states no width."""
LATENT = frozenset(
    {
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
    }
)
"""Types for which vLLM 0.32 keeps the latent vector (transformers_utils/model_arch_config_convertor.py,
is_deepseek_mla)."""
EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
"""Every which layer looks at all tokens where config.json states neither `layer_types` nor `sliding_window_pattern`."""
MOST, MOST_OTHERS = (
    {"num_hidden_layers": 10_000, "num_attention_heads": 10_000, "num_key_value_heads": 10_000},
    2**31 - 1,
)
"""No model comes near; products of three of them stay within what a database's whole numbers hold."""
HEAD = re.compile(r"Eagle3?(?=[A-Z]|$)|Medusa|DFlash")
"""Architectures of weights that propose tokens from another model's hidden states (`head`)."""
NO_ATTENTION = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"})


@lru_cache(maxsize=1)
def architectures() -> Mapping[str, Any]:
    """`architectures` that generate text, `configs` by type, and the library release they were read from (`source`)."""
    document: dict[str, Any] = json.loads((ASSETS / "architectures.json").read_text())
    return document


def check_architecture(name: str) -> None:
    """Raise InvalidModel where nothing here could load the model without running code that comes with it."""
    known = architectures()
    if HEAD.search(name):
        raise InvalidModel(
            f"config.json names the architecture {name[:80]!r}, a head that drafts for another model: name its folder "
            "in a "
            "recipe for that model, as `speculate: {method: eagle3, draft: FOLDER}`."
        )
    if name not in known["architectures"]:
        raise InvalidModel(
            f"config.json names the architecture {name[:80]!r}, which {known['source']} does not know as one that "
            "generates text: Whetstone runs no code that comes with a model, so it cannot use this one."
        )


class _Part:
    """The text part of a config.json. `nested` ones leave out what their class fills in; of a plain one that is not
    taken."""

    def __init__(self, values: Mapping[str, Any], row: Mapping[str, Any], *, nested: bool) -> None:
        self.values, self.nested = values, nested
        self.names: Mapping[str, str] = row.get("names", {})
        self.defaults: Mapping[str, Any] = row.get("defaults", {})

    def get(self, field: str, *others: str) -> Any:
        """Return the value under any of the field's names, the family's own first; None if there is none."""
        candidates = (field, self.names.get(field, field), *others)
        return next((self.values[name] for name in candidates if self.values.get(name) is not None), None)

    def size(self, field: str, *others: str, default: int | None = None) -> int:
        value = self.get(field, *others)
        if value is None:
            value = default
            if value is None and self.nested:
                value = self.defaults.get(field)
        if type(value) is not int or value < 1:
            raise InvalidModel(f"config.json has no usable `{field}`: it must be a whole number above 0.")
        return _bounded(field, value)

    def optional(self, field: str, *others: str) -> int | None:
        value = self.get(field, *others)
        return _bounded(field, value) if type(value) is int and value > 0 else None


def _bounded(field: str, value: int) -> int:
    most = MOST.get(field, MOST_OTHERS)
    if value > most:
        raise InvalidModel(f"config.json has no usable `{field}`: it must be at most {most:,}.")
    return value


class Architecture(NamedTuple):
    """`facts` in the names of the card; `notes` on what is not plainly what the file says."""

    facts: dict[str, Any]
    notes: tuple[str, ...]
    multimodal: bool


def read(config: Mapping[str, Any]) -> Architecture:
    """Read the architecture. Raises InvalidModel with one sentence."""
    architecture, model_type = _names(config)
    check_architecture(architecture)
    part, kind, note = _text_part(config, model_type)
    if kind in NO_ATTENTION:
        raise InvalidModel(
            f"The model is of type `{kind}`, which has no attention and so no key-value cache: this version cannot "
            "describe it."
        )
    context, unsaid = _context(part)
    facts = {"architecture": architecture, "model_type": model_type, "max_positions": context, **_sizes(part, kind)}
    tied = config.get("tie_word_embeddings")
    facts["tied_embeddings"] = tied if isinstance(tied, bool) else _tied(part, model_type)
    return Architecture(facts, tuple(text for text in (note, unsaid) if text), note is not None)


def _names(config: Mapping[str, Any]) -> tuple[str, str]:
    names, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        known = architectures()
        usual = known["causal"].get(model_type) if isinstance(model_type, str) else None
        if usual is None:
            raise InvalidModel(
                "config.json names no architecture (`architectures`): whetstone cannot tell what model this is."
            )
        raise InvalidModel(
            f'config.json names no architecture (`architectures`): add the line `"architectures": ["{usual}"],` to '
            f"it, which {known['source']} takes for the type {model_type}."
        )
    if not isinstance(model_type, str) or not model_type:
        raise InvalidModel("config.json has no `model_type`: whetstone cannot tell what model this is.")
    return names[0], model_type


def _text_part(config: Mapping[str, Any], model_type: str) -> tuple[_Part, str, str | None]:
    """The part that generates text, its type, and a note where it is not the whole.

    Some multimodal models (Qwen2-VL) were published with the fields of their text part at the top.
    """
    rows = architectures()["configs"]
    row = rows.get(model_type, {})
    inner = config.get(row.get("text", "text_config"))
    if not isinstance(inner, dict) and "text" not in row:
        return _Part(_flat(config), row, nested=False), model_type, None
    nested = isinstance(inner, dict)
    inner_type = inner.get("model_type") if isinstance(inner, dict) else None
    kind = inner_type if isinstance(inner_type, str) else str(row.get("text_type", model_type))
    part = _Part(inner if isinstance(inner, dict) else config, rows.get(kind, {}), nested=nested)
    return part, kind, f"A multimodal model: the facts are those of its text part, of type {kind}."


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables in which MPT and DBRX keep the sizes of attention and MLP, laid beside the others."""
    flat = dict(config)
    for table in ("attn_config", "ffn_config"):
        if isinstance(config.get(table), dict):
            flat = {**config[table], **flat}
    return flat


def _sizes(part: _Part, kind: str) -> dict[str, Any]:
    heads, hidden = part.size("num_attention_heads"), part.size("hidden_size", "n_embed")
    layers = part.size("num_hidden_layers")
    experts = _experts(part)
    return {
        "layers": layers,
        "hidden_size": hidden,
        "intermediate_size": _intermediate(part, kind, hidden, bool(experts["experts"])),
        "heads": heads,
        "kv_heads": _kv_heads(part, kind, heads),
        "head_dim": _head_dim(part, kind, hidden // heads),
        "vocabulary": part.size("vocab_size"),
        "kv_latent": _latent(part, kind),
        **experts,
        **_windows(part, kind, layers),
    }


def _intermediate(part: _Part, kind: str, hidden: int, experts: bool) -> int:
    """The width of the MLP, of one expert where there are experts."""
    of_expert = part.optional(*EXPERT_SIZE) if experts else None
    if of_expert is not None:
        return of_expert
    ratio = part.get("expansion_ratio")
    wide = hidden * (ratio if type(ratio) is int and ratio > 0 else 4)
    return part.size("intermediate_size", *INTERMEDIATE, default=wide if kind in FOURFOLD else None)


def _kv_heads(part: _Part, kind: str, heads: int) -> int:
    """Falcon and StarCoder say `multi_query`, which is one head; Falcon's newer decoder states how many."""
    if kind == "gpt_bigcode" or (kind == "falcon" and not part.get("new_decoder_architecture")):
        return heads if part.get("multi_query") is False else 1
    nested = part.defaults.get("num_key_value_heads") if part.nested else None
    return part.size("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", default=nested or heads)


def _head_dim(part: _Part, kind: str, even: int) -> int:
    """Its own where the family has one (Gemma's 256); with latent attention the width that scores are made over."""
    if kind in LATENT:
        parts = [part.optional(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
        return sum(size for size in parts if size) or even
    return part.size("head_dim", default=part.defaults.get("head_dim", even))


def _latent(part: _Part, kind: str) -> int | None:
    rank, rope = part.optional("kv_lora_rank"), part.optional("qk_rope_head_dim")
    return rank + rope if kind in LATENT and rank and rope else None


def _context(part: _Part) -> tuple[int, str | None]:
    if part.get("max_position_embeddings", *CONTEXT) is not None:
        return part.size("max_position_embeddings", *CONTEXT), None
    default = part.defaults.get("max_position_embeddings")
    if default is not None:
        return default, None
    return (
        ASSUMED_CONTEXT,
        f"config.json states no context length: {ASSUMED_CONTEXT:,} tokens are assumed, as vLLM does.",
    )


def _tied(part: _Part, model_type: str) -> bool:
    """Return whether embeddings are tied: as the text part says, else by the class of the whole model, else of the
    part."""
    stated = part.values.get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    whole = architectures()["configs"].get(model_type, {}).get("defaults", {})
    return bool(whole.get("tie_word_embeddings", part.defaults.get("tie_word_embeddings", False)))


def _experts(part: _Part) -> dict[str, int | None]:
    """Return the experts per layer and per token; None for a dense model, whose config may say 0 or 1."""
    expert_count = part.optional(*EXPERTS)
    experts = expert_count if expert_count is not None and expert_count > 1 else None
    return {"experts": experts, "experts_per_token": part.optional(*EXPERTS_PER_TOKEN) if experts else None}


def _windows(part: _Part, kind: str, layers: int) -> dict[str, int | None]:
    """Return how many layers keep a cache, and how many of them only a window."""
    window = part.optional("sliding_window") or (part.defaults.get("sliding_window") if kind in EVERY else None)
    types = part.values.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        cached = sum("attention" in str(one) and one != "linear_attention" for one in types)
        sliding = types.count("sliding_attention")
    else:
        cached, sliding = layers, _sliding(part, kind, layers)
    sliding = sliding if window else 0
    return {
        "kv_layers": cached if cached != layers else None,
        "sliding_layers": sliding,
        "sliding_window": window if sliding else None,
    }


def _sliding(part: _Part, kind: str, layers: int) -> int:
    every = part.optional("sliding_window_pattern") or EVERY.get(kind)
    if every:
        return layers - layers // every
    if part.get("use_sliding_window") is not None or kind.startswith("qwen"):
        first = part.optional("max_window_layers") or 0
        return max(0, layers - first) if part.get("use_sliding_window") is True else 0
    return layers
