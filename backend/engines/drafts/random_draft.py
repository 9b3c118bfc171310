"""Makes drafts of random weights with the target's tokenizer: they cost what a trained one of their size does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from backend.domain.model.facts import ModelCard
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftShape

TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "*.model", "generation_config.json")
SPREAD = 0.02
"""Standard deviation of the weights, as transformers begins a model."""


def make(folder: Path, target: ModelCard, hidden: int, layers: int) -> DraftShape:
    """Write a Llama of that size to `folder`, with the files of the target's tokenizer; its embedding is its head.

    Keys and values are as wide as the target's, since vLLM's cache has one page size.
    """
    import torch
    from safetensors.torch import save_file

    # 1. The shapes of all tensors.
    width, inner = target.kv_heads * target.head_dim, draft_payoff.intermediate_size(hidden)
    shapes = {"model.embed_tokens": (target.vocabulary, hidden), "model.norm": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj": (width, hidden) for name in "qkv"}
        shapes |= {f"{prefix}.self_attn.o_proj": (hidden, width), f"{prefix}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"{prefix}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{prefix}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}

    # 2. Random weights, and norms of ones.
    random = torch.Generator().manual_seed(hidden * 1000 + layers)
    weights = {
        f"{name}.weight": torch.ones(size) if len(size) == 1 else torch.randn(size, generator=random) * SPREAD
        for name, size in shapes.items()
    }

    # 3. The folder: weights, tokenizer and configuration.
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    for pattern in TOKENIZER:
        for path in Path(target.path).glob(pattern):
            shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(_config(target, hidden, layers), indent=1))
    return DraftShape(parameters=draft_payoff.draft_parameters(target.vocabulary, hidden, layers, width), layers=layers)


def _config(target: ModelCard, hidden: int, layers: int) -> dict[str, object]:
    # Special tokens are the target's own.
    own = json.loads((Path(target.path) / "config.json").read_text())
    tokens = {name: own[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in own}
    return {
        **tokens,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": target.vocabulary,
        "hidden_size": hidden,
        "intermediate_size": draft_payoff.intermediate_size(hidden),
        "num_hidden_layers": layers,
        "num_attention_heads": target.kv_heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "max_position_embeddings": target.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    }
