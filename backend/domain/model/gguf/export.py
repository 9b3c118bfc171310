"""Plans a GGUF file of a model folder: its keys, and for each tensor of the folder the name that llama.cpp gives it.

It is the way back of `backend.domain.model.gguf.conversion`, whose tables of tensors it reads. Keys are those of
`gguf.constants.Keys` (package gguf 0.19.0). What a key cannot state is refused, never left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from backend.domain.errors import InvalidModel
from backend.domain.frozen import Frozen
from backend.domain.model.gguf.conversion import CarriedTensor, planned_tensors
from backend.domain.model.gguf.rope import HIGH, LOW, llama3_factors

WRITABLE = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` of config.json -> `general.architecture` of the file."""
ASIDE = frozenset({"rotary_emb.inv_freq", "masked_bias"})
"""Ends of names of tensors that old checkpoints have and nothing reads."""
FOLDER, SUFFIX = "gguf", ".gguf"
"""The folder, in that of a model, that has its GGUF file, and the end of the file's name."""
Key = int | float | str


class ExportPlan(Frozen):
    """`keys` are below the architecture's name. `frequencies` are the values of rope_freqs.weight, empty without."""

    architecture: str
    keys: dict[str, Key]
    tensors: tuple[CarriedTensor, ...]
    frequencies: tuple[float, ...] = ()


def find_unwritable(model_type: str) -> str | None:
    """Return why no GGUF file can be written of a family, without a full stop; None where one can."""
    if model_type in WRITABLE:
        return None
    families = ", ".join(sorted(WRITABLE))
    return f"no GGUF file is written of models of type {model_type} yet, only of {families}"


def plan_export(name: str, config: Mapping[str, Any], stored: Collection[str]) -> ExportPlan:
    """Return the plan for a model with this config, as transformers completes it, and tensors of these names.

    Raises InvalidModel, one sentence, for what the file could not state and for tensors that are missing or left over.
    """
    # 1. The family, and what a file of it cannot state.
    model_type = str(config["model_type"])
    refusal = find_unwritable(model_type) or next(_unstated(config), None)
    if refusal is not None:
        raise InvalidModel(f"{name} cannot become a GGUF file: {refusal}.")
    # 2. The keys.
    known = {**config, "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]}
    keys, frequencies = _keys(known)
    scaling, factors = _rope(name, known)
    # 3. The tensors; an output head that repeats the embedding may be stored, and is not written.
    architecture = WRITABLE[model_type]
    tensors = tuple(planned_tensors(architecture, known, {}))
    _check_tensors(name, known, tensors, stored)
    return ExportPlan(
        architecture=architecture, keys={**keys, **frequencies, **scaling}, tensors=tensors, frequencies=factors
    )


def _unstated(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what changes the computation and has no key in a file of these architectures."""
    if config.get("hidden_act") not in {"silu", "swish"}:
        yield f"its activation function is {config.get('hidden_act')}, and llama.cpp computes silu for it"
    window, positions = config.get("sliding_window"), config["max_position_embeddings"]
    uses_window = config.get("use_sliding_window", True) and config["model_type"] != "qwen2"
    if window and uses_window and window < positions:
        yield f"its attention sees {window} tokens at most, which llama.cpp does not compute for it"
    if config["model_type"] == "qwen3" and config.get("attention_bias"):
        yield "its attention has biases, which llama.cpp does not read for it"


def _keys(config: Mapping[str, Any]) -> tuple[dict[str, Key], dict[str, Key]]:
    """Return the keys of sizes, and those of rotary positions."""
    size = config["head_dim"]
    sizes: dict[str, Key] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
    }
    rope = config["rope_parameters"]
    return sizes, {"rope.dimension_count": size, "rope.freq_base": float(rope["rope_theta"])}


def _rope(name: str, config: Mapping[str, Any]) -> tuple[dict[str, Key], tuple[float, ...]]:
    """Return the keys of scaled rotary positions, and Llama 3's factors. Raises InvalidModel for another scaling."""
    rope = config["rope_parameters"]
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return {}, ()
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}, ()
    if kind == "llama3" and (rope["low_freq_factor"], rope["high_freq_factor"]) == (LOW, HIGH):
        length = int(rope["original_max_position_embeddings"])
        base, size = float(rope["rope_theta"]), config["head_dim"]
        return {}, tuple(llama3_factors(float(rope["factor"]), length, base, size))
    plain_yarn = not {"attention_factor", "mscale", "mscale_all_dim"} & {key for key in rope if rope[key] is not None}
    if kind == "yarn" and plain_yarn:
        original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": int(original),
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
        }, ()
    raise InvalidModel(f"{name} cannot become a GGUF file: its rotary positions ({kind}) have no key in one.")


def _check_tensors(
    name: str, config: Mapping[str, Any], tensors: tuple[CarriedTensor, ...], stored: Collection[str]
) -> None:
    """Raise InvalidModel for the first tensor that is missing, or that no place in the file is for."""
    planned = {tensor.becomes[0] for tensor in tensors}
    if missing := sorted(planned - set(stored)):
        raise InvalidModel(f"{name} has no tensor {missing[0]}, so that no GGUF file can be written of it.")
    ignored = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    left = [other for other in sorted(set(stored) - planned - ignored) if not other.endswith(tuple(ASIDE))]
    if left:
        raise InvalidModel(f"{name} has the tensor {left[0]}, which no GGUF file of its family has a place for.")
