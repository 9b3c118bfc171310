"""Tiny random multimodal models in the shapes of Qwen-VL, Llava and Gemma 3, with tokenizer, as transformers saves
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import byte_tokenizer, roughen

VOCABULARY = 320
TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}}
TOKENS = {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303}
VISION = {"depth": 1, "num_heads": 2, "patch_size": 4}
QWEN_TOWER = {**VISION, "hidden_size": 32, "out_hidden_size": 128, "intermediate_size": 64}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
KINDS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": {**TEXT, **ROTARY},
        "vision_config": {**VISION, "embed_dim": 32, "hidden_size": 128, "mlp_ratio": 2, "in_channels": 3},
        **TOKENS,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, **ROTARY},
        "vision_config": {**QWEN_TOWER, "fullatt_block_indexes": [0]},
        **TOKENS,
    },
    "qwen3_vl": {
        "text_config": {**TEXT, **ROTARY},
        "vision_config": {**QWEN_TOWER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **TOKENS,
    },
    "llava": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**TOWER, "model_type": "clip_vision_model", "num_hidden_layers": 2, "projection_dim": 32},
        "image_token_index": 300,
    },
    "gemma3": {
        "text_config": {**TEXT, "model_type": "gemma3_text", "query_pre_attn_scalar": 32},
        "vision_config": {**TOWER, "model_type": "siglip_vision_model", "num_hidden_layers": 1},
        "image_token_index": 300,
        "mm_tokens_per_image": 4,
    },
}
"""What the config of each `model_type` says."""


def tiny_multimodal(folder: Path, model_type: str) -> Path:
    """Write a random model of that type into `folder`, its weights in bfloat16; return `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(model_type, **KINDS[model_type])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config)
        roughen(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder, VOCABULARY)
    (folder / "preprocessor_config.json").write_text('{"patch_size": 4}\n')
    return folder
