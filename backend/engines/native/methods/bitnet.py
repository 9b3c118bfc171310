"""Ternary weights: each becomes -1, 0 or 1 times the mean |w| of its group.

BitNet b1.58, Ma et al. 2024 (arXiv 2402.17764), section 2: RoundClip(W / mean |W|, -1, 1), one scale a matrix there and
one a group here. The paper trains a model in this form from the start; rounding one that was trained otherwise ruins
it, and `recover` trains what is left (docs/decisions/0069). Stored as integers of 2 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.domain.needs.job_duration import REPORT_SAMPLES, REPORT_TOKENS
from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Linear
from backend.engines.native.methods.nearest import Nearest
from backend.engines.native.methods.pipelines import Pipeline, grouped
from backend.engines.native.methods.rounding import Grid, Rounding, Snapped, in_groups

if TYPE_CHECKING:
    import torch


def ternary(weight: torch.Tensor, rounding: Rounding) -> Snapped:
    """Round `weight` [out, in] fp32 to -1, 0 or 1 times the mean |w| of its group, as that is stored."""
    import torch

    groups = in_groups(weight, rounding)
    scale = groups.abs().mean(-1).clamp_min(torch.finfo(rounding.scale_dtype).smallest_normal)
    scale = scale.to(rounding.scale_dtype).float()
    values = (groups / scale[..., None]).round_().clamp_(-1, 1).mul_(scale[..., None])
    return Snapped(values.view(weight.shape), Grid(scale, torch.zeros_like(scale, dtype=torch.int8)))


class Ternary(Nearest):
    """Rounds every weight by itself."""

    def snap(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[Snapped]:
        return [ternary(weight, self.rounding) for weight in weights]


def bitnet(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    form = grouped(request.model_copy(update={"symmetric": True}), dtype)
    rounder = Ternary(form.rounding, form.write)
    return Pipeline(rounder, form.config, form.rounding, samples=REPORT_SAMPLES, gram_tokens=REPORT_TOKENS)


PIPELINES = {"bitnet": bitnet}
