"""Drafts of random weights with the target's tokenizer and vocabulary: what they cost is that of a trained one of their
size."""

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
    """A Llama of that size in `folder`, its embedding its output head, keys and values as wide as the target's: vLLM's
    cache has one page size. Takes the files of the tokenizer from the target's folder."""
    import torch
    from safetensors.torch import save_file

    width, inner = target.kv_heads * target.head_dim, draft_payoff.intermediate_size(hidden)
    shapes = {"model.embed_tokens": (target.vocabulary, hidden), "model.norm": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj": (width, hidden) for name in "qkv"}
        shapes |= {f"{prefix}.self_attn.o_proj": (hidden, width), f"{prefix}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"{prefix}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{prefix}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
    random = torch.Generator().manual_seed(hidden * 1000 + layers)
    weights = {
        f"{name}.weight": torch.ones(size) if len(size) == 1 else torch.randn(size, generator=random) * SPREAD
        for name, size in shapes.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: each.to(torch.bfloat16) for name, each in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    for path in {path for pattern in TOKENIZER for path in Path(target.path).glob(pattern)}:
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(_config(target, hidden, layers), indent=1))
    return DraftShape(parameters=draft_payoff.draft_parameters(target.vocabulary, hidden, layers, width), layers=layers)


def _config(target: ModelCard, hidden: int, layers: int) -> dict[str, object]:
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
