"""Finds the language model in a checkpoint that holds more: a vision tower, a projector, heads for further tokens.

What is not the language model is carried as it is. Its own tensors go by the names that they have in the checkpoint;
here is what these names begin with. Knows names and transformers' configs, no weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BEGINNINGS = ("", "language_model.", "model.language_model.")
"""The text that may stand before a tensor's name in the language model, or in place of its base model's name: none in
text models and Qwen2-VL, the first in Llava and Gemma 3, the second in the names of transformers 5."""
OTHER_PARTS = frozenset(
    {"visual", "vision_tower", "vision_model", "multi_modal_projector", "mm_projector", "audio_tower", "image_newline"}
)
"""Parts of multimodal models that are no language model, by the first or second name of their tensors."""
HEADS = frozenset({"mtp", "mtp_layers", "eagle_module", "medusa_heads"})
"""Heads beside a language model that predict further tokens: Qwen3-Next and Qwen3.5 (`mtp`), MiMo (`model.mtp_layers`),
EAGLE and Medusa as ModelOpt saves them in one checkpoint with their target."""
AS_TEXT = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Types of text parts that have no class of their own in transformers, and the text model that computes the same of
text: there the three positions of the rotary embedding are one."""
OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Settings of the rotary embedding that are for images alone."""


def text_config(config: Any, *, tied: bool) -> Any:
    """Return the config of the language model by itself; `config` where the model is nothing else.

    `tied`: the checkpoint has no output head of its own.
    """
    from transformers import AutoConfig

    # 1. A text model is its own language part.
    text = config.get_text_config()
    if text is config:
        return config
    # 2. A part without a class gets that of the text model that it is.
    fields = text.to_dict()
    kind = AS_TEXT.get(text.model_type, text.model_type)
    rope = fields.get("rope_parameters")
    if isinstance(rope, dict):
        fields["rope_parameters"] = {key: value for key, value in rope.items() if key not in OF_IMAGES}
        if fields["rope_parameters"].get("rope_type") in {"mrope", "default"}:
            fields["rope_parameters"]["rope_type"] = "default"
    for name in ("model_type", "architectures", "transformers_version"):
        fields.pop(name, None)
    return AutoConfig.for_model(kind, **fields | {"tie_word_embeddings": tied})


def find_beginning(names: Iterable[str], layers: str) -> str:
    """Return what the names of the language model's tensors begin with in place of its base model's name.

    `layers` is the module path of the layers, such as `model.layers`; checkpoints may leave out the base model's name.
    """
    base, _, inside = layers.rpartition(".")
    present = list(names)
    for beginning in BEGINNINGS:
        for begin in (f"{beginning}{base}.", beginning):
            if any(name.startswith(f"{begin}{inside}.0.") for name in present):
                return begin
    return f"{base}."


def is_other_part(name: str) -> bool:
    """Return whether a tensor belongs to a part of a multimodal model that is no language model."""
    return not OTHER_PARTS.isdisjoint(name.split(".")[:2])


def is_head(name: str) -> bool:
    """Return whether a tensor belongs to a head that predicts further tokens."""
    return not HEADS.isdisjoint(name.split(".")[:2])


def exceptions(names: Iterable[str], beyond: Iterable[str]) -> list[str]:
    """Return patterns for `quantization_config` that except the parts which these tensors belong to.

    `beyond` are what the names of layers behind the last one begin with.
    """
    patterns: list[str] = []
    for name in names:
        part = next((part for part in name.split(".")[:2] if part in OTHER_PARTS | HEADS), None)
        if part is not None:
            patterns.append(f"re:.*{part}.*")
    return [*dict.fromkeys(patterns), *(f"re:.*{begin.replace('.', '[.]')}.*" for begin in beyond)]
