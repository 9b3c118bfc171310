"""Searches per-channel scales that protect the salient input channels of a group of linears (AWQ), on Gram matrices.

Lin et al. 2023 (arXiv 2306.00978), section 3.2: W x = (W s) (x / s); rounding W s instead of W makes the error of channels
with large s smaller. Here the error of a candidate is trace((W - Q(W s)/s) H (W - Q(W s)/s)') with H = X'X, the exact squared
output error over the calibration tokens. Knows no model: matrices in, scales out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.engines.native.calibration import Gram
from backend.engines.native.rounding import Rounding, in_groups, rounded

if TYPE_CHECKING:
    import torch

GRID = 20
"""Steps of the exponent over [0, 1], the paper's."""

SAMPLED_ROWS = 256
"""Output rows of a group that rank the candidates."""

FINALISTS = 3


@dataclass
class Linear:
    """`weight` [out, in] is the original; what is stored is weight x columns / rows, which computes the same once `rows` [out]
    is folded into the next linear's columns and `columns` [in] into the producer."""

    name: str
    weight: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    def stored(self, columns: torch.Tensor) -> torch.Tensor:
        return self.weight * columns / self.rows[:, None]

    def error(self, columns: torch.Tensor, rounding: Rounding) -> torch.Tensor:
        """W - Q(W s)/s [out, in], in the original's units."""
        return self.weight - rounded(self.stored(columns), rounding) * self.rows[:, None] / columns


class NormProducer:
    """A norm with one weight a channel. Scales are nudged so that the folded weight is exact in its stored dtype."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        self.weight, self.dtype = weight, dtype

    def tie(self, statistic: torch.Tensor) -> torch.Tensor:
        return statistic

    def exact(self, scales: torch.Tensor) -> torch.Tensor:
        import torch

        nudged = self.weight / self.fold(scales).float()
        return torch.where(nudged.isfinite() & (nudged > 0), nudged, torch.ones_like(nudged))

    def fold(self, scales: torch.Tensor) -> torch.Tensor:
        """The norm's weight over the scales, as stored."""
        return (self.weight / scales).to(self.dtype)


class LinearProducer:
    """A linear whose output channel feeds `repeats` input channels: with grouped queries a KV head feeds several heads.

    Layout of the input: [KV heads, repeats, head_dim].
    """

    def __init__(self, out_features: int, in_features: int, head_dim: int) -> None:
        self.repeats = in_features // out_features
        self.block = head_dim if self.repeats > 1 else out_features

    def tie(self, statistic: torch.Tensor) -> torch.Tensor:
        """The mean over the channels that must share one scale, at each of them."""
        shaped = statistic.view(-1, self.repeats, self.block)
        return shaped.mean(1, keepdim=True).expand_as(shaped).flatten()

    def exact(self, scales: torch.Tensor) -> torch.Tensor:
        return scales

    def rows(self, scales: torch.Tensor) -> torch.Tensor:
        """What the producer's output rows are divided by [its out features]."""
        return scales.view(-1, self.repeats, self.block)[:, 0].flatten()


Producer = NormProducer | LinearProducer


def squared_error(error: torch.Tensor, gram: Gram) -> float:
    """trace(E H E') of E [out, in]: the sum of squared output errors over the calibration tokens."""
    return gram.squared(error)


def group_loss(linears: list[Linear], columns: torch.Tensor, gram: Gram, rounding: Rounding) -> float:
    return sum(squared_error(linear.error(columns, rounding), gram) for linear in linears)


def search(linears: list[Linear], gram: Gram, producer: Producer, rounding: Rounding) -> torch.Tensor:
    """The candidate scales [in] of least loss, never worse than plain rounding, whose scales are ones.

    The loss is a sum over output rows, so an even sample of rows ranks the candidates; the first few are then held against
    plain rounding on all rows.
    """
    sampled = _sample_rows(linears)
    plain, *candidates = _candidates(linears, gram, producer, rounding)
    candidates.sort(key=lambda columns: group_loss(sampled, columns, gram, rounding))
    return min([plain, *candidates[:FINALISTS]], key=lambda columns: group_loss(linears, columns, gram, rounding))


def _sample_rows(linears: list[Linear]) -> list[Linear]:
    step = max(1, sum(len(linear.weight) for linear in linears) // SAMPLED_ROWS)
    return [Linear(linear.name, linear.weight[::step], linear.rows[::step], linear.columns) for linear in linears]


def _candidates(linears: list[Linear], gram: Gram, producer: Producer, rounding: Rounding) -> Iterator[torch.Tensor]:
    """Ones; activation^a; and activation^a / weight^(1-a), the form of the authors' code and AutoAWQ."""
    import torch

    activation = producer.tie(gram.total_abs)
    weight = producer.tie(_weight_statistic(linears, rounding))
    yield producer.exact(torch.ones_like(activation))
    for step in range(1, GRID):
        power = activation.clamp(min=1e-30).log() * (step / GRID)
        yield producer.exact(_centred(power))
        yield producer.exact(_centred(power - weight.clamp(min=1e-30).log() * (1 - step / GRID)))


def _centred(logs: torch.Tensor) -> torch.Tensor:
    """Scales from their logarithms, the geometric middle of the extremes at 1, dead channels held to 1e-4."""
    low, high = logs.clamp(min=logs.max() - 18.4).aminmax()
    return (logs.clamp(min=float(low)) - (low + high) / 2).exp().clamp(1e-4, 1e4)


def _weight_statistic(linears: list[Linear], rounding: Rounding) -> torch.Tensor:
    """Mean over all rows of |w| relative to the largest of its quantization group [in]."""
    import torch

    weight = torch.cat([linear.weight / linear.rows[:, None] for linear in linears]).abs()
    grouped = in_groups(weight, rounding)
    return (grouped / (grouped.amax(-1, keepdim=True) + 1e-30)).flatten(1).mean(0)
