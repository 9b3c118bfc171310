"""Static scales of activations: of a linear's input, and of the key-value cache. From the largest values seen, by the library's
arithmetic. Knows no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.engines.native.methods.rounding import Rounding
from backend.layered.cache import Extent

if TYPE_CHECKING:
    import torch

FP8_MAX = 448.0
"""The largest number of E4M3: Micikevicius et al. 2022 (arXiv 2209.05433), table 1."""


def input_scale(max_abs: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """The scale [1] fp32 of an input whose channels reached `max_abs` [in], symmetric, one for the whole tensor."""
    from compressed_tensors.quantization.utils import calculate_qparams

    most = max_abs.amax().reshape(1)
    scale, _ = calculate_qparams(-most, most, rounding.scheme.input_activations)
    static: torch.Tensor = scale.float()
    return static


def cache_scales(reached: Extent) -> dict[str, torch.Tensor]:
    """`k_scale` and `v_scale` [1] fp32 of one attention layer, from the largest |key| (after rotary embedding, as vLLM caches it)
    and |value|: static, one a tensor, stored value = value / scale in E4M3."""
    import torch

    most = {"k_scale": reached.key, "v_scale": reached.value}
    return {name: torch.tensor([value / FP8_MAX if value > 0 else 1.0]) for name, value in most.items()}
