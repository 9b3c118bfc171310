"""AWQ: per-channel scales that protect the salient input channels of a group of linears, searched on Gram matrices.

Lin et al. 2023 (arXiv 2306.00978), section 3.2: W x = (W s) (x / s); rounding W s instead of W makes the error of
channels with large s smaller. Here the error of a candidate is trace((W - Q(W s)/s) H (W - Q(W s)/s)') with H = X'X,
the exact squared output error over the calibration tokens. Knows no model: matrices in, scales out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Linear, Producer
from backend.engines.native.methods import nearest
from backend.engines.native.methods.pipelines import Pipeline, grouped
from backend.engines.native.methods.rounding import Rounding, in_groups, rounded

if TYPE_CHECKING:
    import torch

GRID = 20
"""Steps of the exponent over [0, 1], the paper's."""

STRIDES = (2, 1)
"""The grid is walked in these: all points at the first stride, then the neighbours of the best so far at each finer
one."""

SAMPLED_ROWS = 256
"""Output rows of a group that rank the candidates."""


def error(linear: Linear, columns: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return the weight error W - Q(W s)/s [out, in], in the original's units."""
    return linear.weight - linear.undone(rounded(linear.stored(columns), rounding), columns)


def losses(linear: Linear, columns: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return the output error ||X e'||^2 of each row's weight error e [out]."""
    return linear.stats.row_losses(error(linear, columns, rounding))


def group_loss(linears: Sequence[Linear], columns: torch.Tensor, rounding: Rounding) -> float:
    """Sum the squared output errors of all linears over the calibration tokens."""
    return sum(linear.stats.squared(error(linear, columns, rounding)) for linear in linears)


def search_scales(linears: Sequence[Linear], producer: Producer, rounding: Rounding) -> torch.Tensor:
    """Return the scales [in] of least loss; ones if none beats rounding the weights as they are.

    The loss is a sum over output rows, so an even sample of rows ranks the candidates, in bfloat16 where that is
    faster; the first is then held against plain rounding on all rows in fp32. What both lose is left with the linears,
    which are asked again when they are rounded.
    """
    import torch

    # 1. Sample rows of the group, so that a candidate costs [about 256, in] instead of [all rows, in].
    step = max(1, sum(len(linear.weight) for linear in linears) // SAMPLED_ROWS)
    rough = {id(linear.stats): linear.stats.rough() for linear in linears}
    sampled = [replace(linear.part(step), stats=rough[id(linear.stats)]) for linear in linears]
    # 2. Rank scales [in] of two families over the grid of exponents.
    ranked = []
    for candidate in _candidates(linears, producer, rounding):
        ranked += _walked(candidate, lambda columns: group_loss(sampled, columns, rounding))
    _, best = min(ranked, key=lambda pair: pair[0])
    # 3. Compare the best with plain rounding, on all rows: each loss is [out].
    scaled = [losses(linear, best, rounding) for linear in linears]
    for linear in linears:
        linear.plain = linear.stats.squared(linear.weight - rounded(linear.weight, rounding))
    if sum(float(rows.sum()) for rows in scaled) > sum(linear.plain or 0.0 for linear in linears):
        return producer.exact(torch.ones_like(best))
    # 4. Store the losses for the rounding, which needs them again.
    for linear, rows in zip(linears, scaled, strict=True):
        linear.scaled = rows
    return best


def _walked(
    candidate: Callable[[float], torch.Tensor], loss: Callable[[torch.Tensor], float]
) -> list[tuple[float, torch.Tensor]]:
    """Try the exponents of the grid; return the loss and scales [in] of each."""
    tried: dict[int, tuple[float, torch.Tensor]] = {}
    for stride in STRIDES:
        best = min(tried, key=lambda step: tried[step][0]) if tried else None
        for step in range(stride, GRID, stride) if best is None else (best - stride, best + stride):
            if 0 < step < GRID and step not in tried:
                columns = candidate(step / GRID)
                tried[step] = (loss(columns), columns)
    return list(tried.values())


def _candidates(
    linears: Sequence[Linear], producer: Producer, rounding: Rounding
) -> Iterator[Callable[[float], torch.Tensor]]:
    """Yield functions from the exponent a to scales [in]: activation^a, the paper's (equation 5) and its code's;
    activation^a / weight^(1-a), AutoAWQ's `duo_scaling`."""
    activation = producer.tie(_activation_statistic(linears)).clamp(min=1e-30).log()
    weight = producer.tie(_weight_statistic(linears, rounding)).clamp(min=1e-30).log()
    yield lambda power: producer.exact(_centred(activation * power))
    yield lambda power: producer.exact(_centred(activation * power - weight * (1 - power)))


def _centred(logs: torch.Tensor) -> torch.Tensor:
    """Return scales [in] from their logarithms, centred on the geometric middle of the extremes; dead channels get
    1e-4."""
    low, high = logs.clamp(min=logs.max() - 18.4).aminmax()
    return (logs.clamp(min=float(low)) - (low + high) / 2).exp().clamp(1e-4, 1e4)


def _activation_statistic(linears: Sequence[Linear]) -> torch.Tensor:
    """Return the mean |x| [in] over the tokens; of experts, which see different tokens, over all that were routed to
    any."""
    inputs = {id(linear.stats): linear.stats for linear in linears}.values()
    total = max(1, sum(stats.tokens for stats in inputs))
    return sum((stats.mean_abs * (stats.tokens / total) for stats in inputs), start=linears[0].weight.new_zeros(()))


def _weight_statistic(linears: Sequence[Linear], rounding: Rounding) -> torch.Tensor:
    """Return the mean over all rows of |w| relative to the largest of its quantization group [in]."""
    import torch

    weight = torch.cat([linear.weight / linear.rows[:, None] for linear in linears]).abs()
    grouped = in_groups(weight, rounding)
    return (grouped / (grouped.amax(-1, keepdim=True) + 1e-30)).flatten(1).mean(0)


class AwqScaler:
    """`search_scales` as the pipeline's scaler."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding

    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        return search_scales(linears, producer, self.rounding)


def awq(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return replace(
        nearest.rtn(request, dtype), scaler=AwqScaler(grouped(request, dtype).rounding), gram=True, reads_text=True
    )


PIPELINES = {"awq": awq}
