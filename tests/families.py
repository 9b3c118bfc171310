"""A tiny random model of every family and layout that the native engine has a row for, and the dense form of what it
wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.tiny import byte_tokenizer, roughen

HIDDEN, HEADS, KV_HEADS, WIDTH, VOCABULARY = 128, 4, 2, 256, 320
GATED = {"num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS, "intermediate_size": WIDTH}
MOE = {"num_experts_per_tok": 2}
BLOCKS: dict[str, Any] = {
    "multi_query": False,
    "parallel_attn": False,
    "new_decoder_architecture": False,
    "alibi": False,
}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GATED),
    "mistral": ("mistral", GATED),
    "mixtral": ("mixtral", {**GATED, **MOE, "num_local_experts": 4}),
    "gemma": ("gemma", GATED),
    "gemma2": ("gemma2", {**GATED, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3_text", {**GATED, "query_pre_attn_scalar": 32}),
    "qwen2": ("qwen2", GATED),
    "qwen3": ("qwen3", GATED),
    "qwen2-moe": (
        "qwen2_moe",
        {
            **GATED,
            **MOE,
            "num_experts": 4,
            "moe_intermediate_size": WIDTH,
            "shared_expert_intermediate_size": 3 * HIDDEN,
        },
    ),
    "qwen3-moe": ("qwen3_moe", {**GATED, **MOE, "num_experts": 4, "moe_intermediate_size": WIDTH}),
    "phi": ("phi", {"num_key_value_heads": KV_HEADS, "intermediate_size": WIDTH}),
    "phi3": ("phi3", {"num_key_value_heads": KV_HEADS, "intermediate_size": WIDTH}),
    "cohere": ("cohere", GATED),
    "cohere2": ("cohere2", GATED),
    "gpt2": ("gpt2", {"n_inner": WIDTH}),
    "gpt-neox": ("gpt_neox", {"intermediate_size": WIDTH, "use_parallel_residual": True}),
    "gpt-neox-sequential": ("gpt_neox", {"intermediate_size": WIDTH, "use_parallel_residual": False}),
    "bloom": ("bloom", {}),
    "bloom-post-norm": ("bloom", {"apply_residual_connection_post_layernorm": True}),
    "falcon-7b": ("falcon", {**BLOCKS, "multi_query": True, "parallel_attn": True}),
    "falcon-40b": (
        "falcon",
        {**BLOCKS, "new_decoder_architecture": True, "parallel_attn": True, "num_kv_heads": KV_HEADS},
    ),
    "falcon-11b": (
        "falcon",
        {
            **BLOCKS,
            "new_decoder_architecture": True,
            "parallel_attn": True,
            "num_kv_heads": KV_HEADS,
            "num_ln_in_parallel_attn": 1,
        },
    ),
    "falcon-rw": ("falcon", {**BLOCKS, "alibi": True, "bias": True}),
}
"""By a name for people: `model_type`, and what its config says beyond the common sizes."""


def tiny(folder: Path, kind: str, layers: int = 2, **overrides: Any) -> Path:
    """Write a random model of `kind` with tokenizer into `folder`, in bfloat16; return `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, own = KINDS[kind]
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(model_type, **sizes, **tokens, max_position_embeddings=512, **{**own, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        roughen(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder, VOCABULARY)
    return folder


def dense(quantized: Path, folder: Path) -> Path:
    """What a quantized checkpoint stands for, as plain weights in fp32: the fake-quantized reference.

    Dequantized by compressed-tensors, a module at a time: transformers itself cannot load every family so (GPT-2's
    Conv1D, Falcon's own linear, experts with zero points).
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file, save_file

    shutil.copytree(quantized, folder)
    document = json.loads((folder / "config.json").read_text())
    quantization = QuantizationConfig.model_validate(document.pop("quantization_config"))
    document |= {"dtype": "float32", "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(document))
    (scheme,) = quantization.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(scheme.format or quantization.format)
    tensors = load_file(folder / "model.safetensors")
    modules: dict[str, dict[str, Any]] = {}
    for name in tensors:
        module, _, local = name.rpartition(".")
        modules.setdefault(module, {})[local] = tensors[name]
    transposed = document["model_type"] == "gpt2"
    plain = {}
    for module, reserved in modules.items():
        if "weight_scale" in reserved:
            state = {**reserved, "weight_scale": reserved["weight_scale"].float()}
            turned = transposed and "weight" in state
            state |= {"weight": state["weight"].T.contiguous()} if turned else {}
            weight = compressor.decompress({key: state[key] for key in state if key != "bias"}, scheme)["weight"]
            reserved = {"weight": weight.T if transposed else weight} | {
                key: reserved[key] for key in reserved if key == "bias"
            }
        plain |= {f"{module}.{local}": tensor.float().contiguous() for local, tensor in reserved.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logits(folder: Path, tokens: Any) -> Any:
    """In fp32, as transformers loads the folder [sequences, length, vocabulary]."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def divergence(reference: Any, other: Any) -> float:
    """Mean KL(reference || other) in nats a token."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
