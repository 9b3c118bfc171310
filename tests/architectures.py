"""What assets/architectures.json must hold, read from the installed transformers: `python -m tests.architectures`
writes it anew.

`architectures` are the classes that generate text (from text alone, or from images and text), `causal` that of each
type of config.json which does from text alone. `configs` says for each type under which names its class keeps a field,
what the class takes where the file leaves a field out, and under which name a multimodal one keeps its text part.
"""

from __future__ import annotations

import json
from typing import Any

from backend.settings import ASSETS

PATH = ASSETS / "architectures.json"
FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "sliding_window",
)
TEXT_PARTS = ("text_config", "llm_config", "language_config")


def expected() -> dict[str, Any]:
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    mappings = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    named = {
        name
        for mapping in mappings
        for names in mapping.values()
        for name in ([names] if isinstance(names, str) else names)
    }
    causal = {
        kind: names if isinstance(names, str) else names[0]
        for kind, names in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    }
    types = {kind for mapping in mappings for kind in mapping if kind in CONFIG_MAPPING}
    configs: dict[str, Any] = {}
    for kind in sorted(types):
        _add(configs, kind, CONFIG_MAPPING[kind], CONFIG_MAPPING)
    return {
        "source": f"transformers {transformers.__version__}",
        "architectures": sorted(named),
        "causal": dict(sorted(causal.items())),
        "configs": configs,
    }


def _add(configs: dict[str, Any], kind: str, config: Any, known: Any) -> None:
    names = {field: name for field, name in config.attribute_map.items() if field in FIELDS}
    defaults = {field: getattr(config, names.get(field, field), None) for field in FIELDS}
    entry: dict[str, Any] = {
        "defaults": {field: value for field, value in defaults.items() if type(value) in {int, bool}}
    }
    if names:
        entry["names"] = names
    part = next((name for name in TEXT_PARTS if name in config.sub_configs), None)
    if part is not None:
        text = _text_type(config)
        entry["text"], entry["text_type"] = part, text
        own = config.sub_configs[part]
        if text not in configs and getattr(own, "model_type", "") == text:
            _add(configs, text, own, known)
    configs[kind] = entry


def _text_type(config: Any) -> str:
    """The type of the text part where the file names none."""
    kind: str = config().get_text_config().model_type
    return kind


def write() -> None:
    """One line a class and a type, so that a diff says what a new release changed."""
    result = expected()
    names = ",\n  ".join(json.dumps(name) for name in result["architectures"])
    rows = ",\n  ".join(f"{json.dumps(kind)}: {json.dumps(row)}" for kind, row in result["configs"].items())
    source = json.dumps(result["source"])
    causal = ",\n  ".join(f"{json.dumps(kind)}: {json.dumps(name)}" for kind, name in result["causal"].items())
    parts = (
        f'"source": {source}',
        f'"architectures": [\n  {names}\n ]',
        f'"causal": {{\n  {causal}\n }}',
        f'"configs": {{\n  {rows}\n }}',
    )
    PATH.write_text("{\n " + ",\n ".join(parts) + "\n}\n")


if __name__ == "__main__":
    write()
