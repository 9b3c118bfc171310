"""Lists the keys of a GGUF file that an import carries, those that change nothing, and those it refuses by name.

Sources: `LLM_KV_NAMES` in src/llama-arch.cpp of llama.cpp (commit 00395eb2), what src/models/llama.cpp and
src/llama-vocab.cpp read of them, and `gguf.constants.Keys` of the package gguf 0.19.0. A key in no table here is
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from backend.domain.errors import InvalidModel

CARRIED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "rope.freq_base": "rope_parameters.rope_theta",
    "rope.scaling.type": "rope_parameters.rope_type",
    "rope.scaling.factor": "rope_parameters.factor",
    "rope.scale_linear": "rope_parameters.factor",
    "rope.scaling.original_context_length": "rope_parameters.original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "rope_parameters.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope_parameters.beta_slow",
}
"""Below the architecture's name -> the field of config.json that it becomes."""

EQUAL = {
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "embedding_length_out": "hidden_size",
    "expert_feed_forward_length": "intermediate_size",
}
"""Keys that repeat a field: they change something only where they differ from it (partial rotation, for one)."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_gating_func": (1,),  # softmax
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
    "use_parallel_residual": (False,),
}
"""Keys that change the computation, unless they have one of these values."""

HARMLESS = frozenset({"rope.scaling.finetuned"})
"""Below the architecture's name: statements about the training."""

TOKENIZER_CARRIED = frozenset(
    f"tokenizer.ggml.{name}"
    for name in (
        "model",
        "pre",
        "tokens",
        "token_type",
        "scores",
        "merges",
        "bos_token_id",
        "eos_token_id",
        "eot_token_id",
        "eom_token_id",
        "unknown_token_id",
        "padding_token_id",
        "add_bos_token",
        "add_space_prefix",
    )
) | {"tokenizer.chat_template"}
NAMED_TEMPLATE = re.compile(r"tokenizer\.chat_template\.([A-Za-z0-9_-]{1,40})")
"""A further chat template, by its name, which becomes the name of a file."""
TOKENIZER_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tokenizer.ggml.add_eos_token": (False,),
    "tokenizer.ggml.add_sep_token": (False,),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
    "tokenizer.ggml.normalizer.lowercase": (False,),
    "tokenizer.ggml.normalizer.strip_accents": (False,),
}
TOKENIZER_HARMLESS = frozenset(
    f"tokenizer.ggml.{name}_token_id"
    for name in (
        "seperator",
        "mask",
        "cls",
        "prefix",
        "suffix",
        "middle",
        "fim_pre",
        "fim_suf",
        "fim_mid",
        "fim_pad",
        "fim_rep",
        "fim_sep",
    )
) | {"tokenizer.chat_templates", "tokenizer.huggingface.json"}
"""Ids of tokens that no plain text or chat brings in, the list of the templates' names, and a copy that nothing
reads."""

DESCRIPTIVE = ("general.", "quantize.imatrix.", "mradermacher.")
"""Whole groups: names, authorship, sampling advice and notes of those who quantized. The reader of the file checks
general.type, general.alignment and general.quantization_version itself."""
STRUCTURAL = frozenset({"split.no", "split.count", "split.tensors.count"})
QUANTIZATION_VERSION = 2
"""GGML_QNT_VERSION of ggml.h: blocks of an earlier version are laid out differently."""


def check_keys(file: str, architecture: str, values: Mapping[str, Any], arrays: Mapping[str, int]) -> None:
    """Refuse every key that changes the computation or the tokenizer and is not carried.

    `values` are the keys with one value each, `arrays` the lengths of the others. Raises InvalidModel, which names the
    key.
    """
    for key in (*values, *arrays):
        name = key.removeprefix(f"{architecture}.")
        if name != key:
            _check_own(file, key, name, values)
        elif not _harmless(key) and not _of_tokenizer(key, values):
            raise not_carried(file, key, values)


def _check_own(file: str, key: str, name: str, values: Mapping[str, Any]) -> None:
    """A key of the architecture; one value for all layers, or it is refused."""
    known = name in CARRIED or name in EQUAL or name in HARMLESS or name == "attention.sliding_window"
    if key in values and (known or values[key] in NEUTRAL.get(name, ())):
        return
    raise not_carried(file, key, values)


def _harmless(key: str) -> bool:
    return key.startswith(DESCRIPTIVE) or key in STRUCTURAL or key in TOKENIZER_HARMLESS


def _of_tokenizer(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether a key of the tokenizer is carried, or changes nothing with its value."""
    if key in TOKENIZER_CARRIED or NAMED_TEMPLATE.fullmatch(key):
        return True
    return key in TOKENIZER_NEUTRAL and values.get(key) in TOKENIZER_NEUTRAL[key]


def not_carried(file: str, key: str, values: Mapping[str, Any]) -> InvalidModel:
    """The refusal of one key: `x.gguf` says `llama.logit_scale` = 0.5, ..."""
    plain = re.sub(r"[^\w.-]", "?", key)[:80]
    shown = f"`{plain}` = {_shown(values[key])}" if key in values else f"`{plain}` as a list"
    return InvalidModel(f"{file} says {shown}, which this import does not carry: import the original model.")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return re.sub(r"[^\w .,+-]", "?", str(value))[:40]
