"""Tells the type of the key-value cache from its size, as OpenVINO's processor plugin lays it out. Pure.

Keys are quantized by channel over a block of tokens, values by token; a group has a scale and a zero point of four
bytes each, stored as elements of the cache's type (OpenVINO 2026.4, ConvertPagedAttnInputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLOCK = 32
"""Tokens in a block."""
SCALE_BYTES = 8
"""A group's scale and zero point."""


def bytes_per_head(cache_type: str, head_size: int) -> float:
    """Return the bytes of one token's key and value of one head as GenAI counts them: an element of u4 as one byte."""
    if cache_type == "f16":
        return 4.0 * head_size
    scale = SCALE_BYTES * (2 if cache_type == "u4" else 1)
    return head_size + head_size * scale / BLOCK + head_size + scale


def find_cache_type(config: Mapping[str, Any], bytes_per_token: float) -> str | None:
    """Return the type whose size is that of the cache; None where none is. `config` is config.json."""
    try:
        heads = int(config["num_attention_heads"])
        head_size = int(config.get("head_dim") or config["hidden_size"] // heads)
        vectors = int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads)
    except (KeyError, TypeError, ValueError):
        return None
    sizes = {name: bytes_per_head(name, head_size) * vectors for name in ("u8", "u4", "f16")}
    return next((name for name, size in sizes.items() if abs(size - bytes_per_token) < 1), None)
