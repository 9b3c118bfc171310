"""SmoothQuant: moves the difficulty of quantizing from activations with outliers to weights, before both become INT8.

Xiao et al. 2022 (arXiv 2211.10438), section 4: Y = (X diag(s)^-1)(diag(s) W) with s_j = max|X_j|^a / max|W_j|^(1-a)
(equation 4). As there, only inputs that come from a norm are smoothed. Knows matrices only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Linear, NormProducer, Producer
from backend.engines.native.methods import nearest
from backend.engines.native.methods.pipelines import Pipeline

if TYPE_CHECKING:
    import torch

STRENGTH = 0.5
"""The paper's migration strength a, its choice for most models."""


class SmoothQuantScaler:
    """Finds scales s [in] for linears that share an input: ones if that does not come from a norm, and 1 for a channel
    whose inputs or weights are all zero."""

    def __init__(self, strength: float = STRENGTH) -> None:
        self.strength = strength

    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        import torch

        if not isinstance(producer, NormProducer):
            return torch.ones_like(linears[0].columns)
        max_input = torch.stack([linear.stats.max_abs for linear in linears]).amax(0)
        max_weight = torch.stack([linear.weight.abs().amax(0) for linear in linears]).amax(0)
        scales = max_input.pow(self.strength) / max_weight.pow(1 - self.strength)
        columns = torch.where((max_input > 0) & (max_weight > 0), scales, torch.ones_like(scales))
        return producer.exact(columns.clamp(1e-4, 1e4))


def smoothquant(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    strength = float(request.tuning.get("strength", STRENGTH))
    return replace(nearest.w8a8(request, dtype), scaler=SmoothQuantScaler(strength), samples=None)


PIPELINES = {"smoothquant": smoothquant}
