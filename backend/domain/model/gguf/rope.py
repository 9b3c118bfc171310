"""Rotary position embeddings of a GGUF file as `rope_parameters` of a transformers config.

Sources: `llama_model_base::load_hparams` (src/llama-model.cpp of llama.cpp): a factor without a type means linear
scaling, `none` ignores the factor. The factors of Llama 3.1 are written by conversion/llama.py as the tensor
rope_freqs.weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.keys import not_carried

FREQUENCIES = "rope_freqs.weight"
DEFAULT_BASE = 10000.0
LOW, HIGH = 1.0, 4.0
"""`low_freq_factor` and `high_freq_factor` of every published Llama 3."""
TRAINED_LENGTHS = tuple(2**power for power in (13, *range(10, 13), *range(14, 21)))
"""Tried for `original_max_position_embeddings`, which the file does not state; 8192 first."""
TOLERANCE = 1e-4
"""Relative: the tensor has 32-bit floats."""


def rope_parameters(
    file: str, architecture: str, values: Mapping[str, Any], head_dim: int, context: int, factors: Sequence[float]
) -> dict[str, Any]:
    """`rope_parameters` of config.json. `factors`: the values of rope_freqs.weight, empty where there is none.

    Raises InvalidModel for a scaling that transformers' config cannot express.
    """

    def number(name: str, default: float) -> float:
        key = f"{architecture}.{name}"
        value = values.get(key, default)
        if type(value) not in {int, float} or not 0 <= value < math.inf:
            raise InvalidModel(f"{file} has no sound `{key}`: import the original model.")
        return float(value)

    # 1. The base, the kind of scaling and its factor.
    base = number("rope.freq_base", DEFAULT_BASE)
    if base <= 1:
        raise InvalidModel(f"{file} has no sound `{architecture}.rope.freq_base`: import the original model.")
    kind = values.get(f"{architecture}.rope.scaling.type", "linear")
    factor = number("rope.scaling.factor", number("rope.scale_linear", 0.0)) or 1.0
    if kind not in {"none", "linear", "yarn"}:
        raise not_carried(file, f"{architecture}.rope.scaling.type", values)
    # 2. Refuse what would scale twice.
    scaled = kind == "yarn" or (kind == "linear" and factor != 1.0)
    if factors and scaled:
        raise InvalidModel(
            f"{file} scales rotary frequencies twice ({kind}, and {FREQUENCIES}): import the original model."
        )
    # 3. Express it as one of transformers' types.
    if factors:
        return {"rope_theta": base} | _llama3(file, factors, base, head_dim)
    if not scaled:
        return {"rope_theta": base, "rope_type": "default"}
    if kind == "linear":
        return {"rope_theta": base, "rope_type": "linear", "factor": factor}
    return {
        "rope_theta": base,
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(number("rope.scaling.original_context_length", context)) or context,
        "beta_fast": number("rope.scaling.yarn_beta_fast", 32.0) or 32.0,
        "beta_slow": number("rope.scaling.yarn_beta_slow", 1.0) or 1.0,
    }


def _llama3(file: str, factors: Sequence[float], base: float, head_dim: int) -> dict[str, Any]:
    """The parameters of Llama 3.1's scaling that give these factors. Raises InvalidModel where none do."""
    # 1. Factors of 1 scale nothing.
    largest = max(factors)
    if all(abs(factor - 1.0) <= TOLERANCE for factor in factors):
        return {"rope_type": "default"}
    # 2. Try the context lengths that such models were trained with.
    for length in TRAINED_LENGTHS if math.isfinite(largest) else ():
        expected = llama3_factors(largest, length, base, head_dim)
        if len(expected) != len(factors):
            continue
        if all(abs(one - other) <= TOLERANCE * other for one, other in zip(factors, expected, strict=True)):
            scaling = {"factor": round(largest, 6), "low_freq_factor": LOW, "high_freq_factor": HIGH}
            return {"rope_type": "llama3", "original_max_position_embeddings": length, **scaling}
    raise InvalidModel(
        f"{file} has rotary frequencies of its own ({FREQUENCIES}) that are not those of Llama 3: import the original "
        "model."
    )


def llama3_factors(factor: float, length: int, base: float, head_dim: int) -> list[float]:
    """Return what each rotary frequency is divided by, for a model trained at `length` tokens (Llama 3.1, 2024)."""
    divided = []
    for even in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (even / head_dim)
        if wavelength < length / HIGH:
            divided.append(1.0)
        elif wavelength > length / LOW:
            divided.append(factor)
        else:
            smooth = (length / wavelength - LOW) / (HIGH - LOW)
            divided.append(1 / ((1 - smooth) / factor + smooth))
    return divided
