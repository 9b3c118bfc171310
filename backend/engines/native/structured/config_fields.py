"""The fields of config.json that a structured pruning changes, by the names that the model's own config has for
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.domain.needs.structure import Structure

NAMES = {
    "layers": ("num_hidden_layers",),
    "intermediate": ("intermediate_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "hidden": ("hidden_size",),
    "experts": ("num_experts", "num_local_experts"),
}
"""Sizes by their names in transformers; a family's own names are in its config class (`attribute_map`)."""


def changes(folder: Path, config: Any, before: Structure, after: Structure, layers: Sequence[int]) -> dict[str, Any]:
    """Return the fields to set in config.json of `folder`: sizes, and lists with an entry for each of `layers`, the
    numbers of the layers that stay. `config` is transformers' of the original."""
    written, text = read_text_part(folder), config.get_text_config()
    fields: dict[str, Any] = {}
    # 1. Sizes, under every name that the file has for them, else under the class's own.
    for size, names in NAMES.items():
        if getattr(before, size) == getattr(after, size):
            continue
        known = [name for name in names if hasattr(text, name)]
        own = [getattr(text, "attribute_map", {}).get(name, name) for name in known]
        stored = [name for name in dict.fromkeys([*own, *known]) if name in written]
        fields |= dict.fromkeys(stored or own[:1], getattr(after, size))
    # 2. The size of a head no longer follows from the others.
    if (before.heads, before.hidden) != (after.heads, after.hidden):
        fields["head_dim"] = getattr(text, "head_dim", None) or before.hidden // before.heads
    if after.experts and (chosen := getattr(text, "num_experts_per_tok", None)):
        fields["num_experts_per_tok"] = min(chosen, after.experts)
    # 3. Lists and limits that number the layers.
    return fields | _layer_lists(written, text, before.layers, layers) if before.layers != after.layers else fields


def _layer_lists(written: Mapping[str, Any], text: Any, count: int, layers: Sequence[int]) -> dict[str, Any]:
    lists = {name: value for name, value in written.items() if "layer" in name and isinstance(value, list)}
    types = getattr(text, "layer_types", None)
    if types is not None:
        lists["layer_types"] = list(types)
    fields: dict[str, Any] = {
        name: [value[number] for number in layers] for name, value in lists.items() if len(value) == count
    }
    first = written.get("max_window_layers")
    if isinstance(first, int):
        fields["max_window_layers"] = sum(number < first for number in layers)
    return fields


def read_text_part(folder: Path) -> dict[str, Any]:
    """Return config.json of the folder, or its text part in a model of several."""
    document: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    text = document.get("text_config")
    return text if isinstance(text, dict) else document
