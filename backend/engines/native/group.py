"""Types that the engine and the algorithms share: a linear with its statistics, what feeds it, an algorithm's task.

Matrices and protocols only. Knows no model, no file and no algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from backend.layered.matrix_products import has_bfloat16

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Stats:
    """Statistics of an input X [tokens, in], fp32.

    At most one of `gram` (X'X [in, in]) and `rows` (X itself) is there, none if neither was collected. `rows` gives the
    same loss, and stands for `gram` if the input is wider than the calibration has tokens. `tokens` is 0 for an expert
    that no token reached: everything else is zero then. `mean_abs` and `max_abs` are NaN if they were not collected.
    """

    tokens: int
    mean_abs: torch.Tensor
    """[in]"""
    max_abs: torch.Tensor
    """[in]"""
    gram: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    def squared(self, error: torch.Tensor) -> float:
        """||X E'||^2 for a weight error E [out, in]: the sum of squared output errors over the calibration tokens."""
        return float(self.row_losses(error).sum())

    def row_losses(self, error: torch.Tensor) -> torch.Tensor:
        """||X e'||^2 of each row e of `error` [out, in]: [out]. Where no text was read X is the identity."""
        if not self.tokens and self.gram is None and self.rows is None:
            return error.square().sum(1)
        if self.rows is not None:
            return (self.rows @ error.T.to(self.rows.dtype)).float().square().sum(0)
        matrix = self.matrix()
        return ((error.to(matrix.dtype) @ matrix) * error).sum(1)

    def matrix(self) -> torch.Tensor:
        """X'X [in, in]. Raises ValueError where the pipeline did not ask for it."""
        if self.rows is not None:
            return self.rows.T @ self.rows
        if self.gram is None:
            raise ValueError("this pipeline collects no Gram matrices")
        return self.gram

    def power(self) -> torch.Tensor:
        """||X_j||^2 of each input channel [in]."""
        return self.rows.square().sum(0) if self.rows is not None else self.matrix().diagonal()

    def rough(self) -> Stats:
        """Return these statistics in bfloat16 if the hardware multiplies it. `squared` is then off by about 1e-4:
        enough to rank."""
        import torch

        if not has_bfloat16(self.mean_abs.device.type):
            return self
        gram = None if self.gram is None else self.gram.to(torch.bfloat16)
        rows = None if self.rows is None else self.rows.to(torch.bfloat16)
        return replace(self, gram=gram, rows=rows)

    def scaled(self, columns: torch.Tensor) -> Stats:
        """The statistics of X / columns, `columns` [in]."""
        gram = None if self.gram is None else self.gram / columns / columns[:, None]
        rows = None if self.rows is None else self.rows / columns
        return Stats(self.tokens, self.mean_abs / columns, self.max_abs / columns, gram, rows)


@dataclass
class Linear:
    """A linear that is optimized: `weight` [out, in] fp32, `original` the same before pruning.

    What is stored is weight x columns / rows, which computes the same once `rows` [out] is folded into the next
    linear's columns and `columns` [in] into the producer.
    """

    name: str
    weight: torch.Tensor
    original: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    stats: Stats
    plain: float | None = None
    """||X (weight - RTN)'||^2 with RTN the weight rounded to nearest, where it is known."""
    scaled: torch.Tensor | None = None
    """||X e'||^2 of each row's error e when `stored()` is rounded to nearest [out], where it is known."""

    def stored(self, columns: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weight [out, in] to be rounded, under other `columns` if they are given."""
        return self.weight * (self.columns if columns is None else columns) / self.rows[:, None]

    def undone(self, stored: torch.Tensor, columns: torch.Tensor | None = None) -> torch.Tensor:
        """Return a weight as stored in the original's units [out, in]."""
        return stored * self.rows[:, None] / (self.columns if columns is None else columns)

    def folded_stats(self) -> Stats:
        """Return the statistics of the input that the stored weight will read."""
        return self.stats.scaled(self.columns)

    @property
    def pruned(self) -> bool:
        return self.weight is not self.original

    @property
    def as_it_was(self) -> bool:
        """Return whether what is stored is the weight itself, as no scales were folded."""
        return bool((self.columns == 1).all()) and bool((self.rows == 1).all())

    def relative_error(self, effective: torch.Tensor) -> float:
        """||X (W - effective)'|| / ||X W'||, W the original, `effective` [out, in] in its units."""
        return self.relative(self.stats.squared(self.original - effective))

    def relative(self, squared: float) -> float:
        """Return the relative error for a known ||X (W - effective)'||^2."""
        return float((max(squared, 0.0) / max(self._output, 1e-30)) ** 0.5)

    @cached_property
    def _output(self) -> float:
        """||X W'||^2."""
        return self.stats.squared(self.original)

    def part(self, step: int) -> Linear:
        """Return every `step`-th output row, with the same input."""
        return replace(self, weight=self.weight[::step], original=self.original[::step], rows=self.rows[::step])


class NormProducer:
    """A norm with one weight a channel, which computes with `offset` + weight (Gemma: 1).

    Scales are nudged so that the folded weight is exact in its stored dtype.
    """

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype, offset: float = 0.0) -> None:
        self.weight, self.dtype, self.offset = weight, dtype, offset

    def tie(self, statistic: torch.Tensor) -> torch.Tensor:
        return statistic

    def exact(self, scales: torch.Tensor) -> torch.Tensor:
        import torch

        nudged = (self.weight + self.offset) / (self.fold(scales).float() + self.offset)
        return torch.where(nudged.isfinite() & (nudged > 0), nudged, torch.ones_like(nudged))

    def fold(self, scales: torch.Tensor) -> torch.Tensor:
        """The norm's weight over the scales, as stored."""
        return ((self.weight + self.offset) / scales - self.offset).to(self.dtype)


class LinearProducer:
    """A linear whose output rows are the input channels: `index` [in] is the row of each channel.

    A row may feed several channels (grouped queries), and rows may feed none (the queries and keys of a fused
    projection).
    """

    def __init__(self, index: torch.Tensor, out_features: int) -> None:
        self.index, self.out_features = index, out_features

    def tie(self, statistic: torch.Tensor) -> torch.Tensor:
        """The mean over the channels that must share one scale, at each of them."""
        sums = statistic.new_zeros(self.out_features).index_add_(0, self.index, statistic)
        counts = statistic.new_zeros(self.out_features).index_add_(0, self.index, statistic.new_ones(len(statistic)))
        return (sums / counts.clamp(min=1.0))[self.index]

    def exact(self, scales: torch.Tensor) -> torch.Tensor:
        return scales

    def rows(self, scales: torch.Tensor) -> torch.Tensor:
        """Divisors of the producer's output rows [its out features]; `scales` are tied."""
        return scales.new_ones(self.out_features).index_copy_(0, self.index, scales)


Producer = NormProducer | LinearProducer


class Stored(NamedTuple):
    """The result of rounding one linear."""

    tensors: dict[str, torch.Tensor]
    """Tensors by local name: `weight`, or `weight_packed`, `weight_scale`..."""
    effective: torch.Tensor
    """[out, in] fp32: what the layer computes with from now on, in the original's units."""
    report: dict[str, Any]
    """The linear's entry in the result's `layers`, without `name`; at least `relative_error`."""


class Pruner(Protocol):
    def prune(self, linear: Linear) -> torch.Tensor:
        """Return the pruned weight [out, in], in the original's units."""


class Scaler(Protocol):
    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        """Return columns [in] for linears that share an input, to be folded into `producer`."""


class Block(Protocol):
    """A decoder layer with the calibration text at hand: what enters it, and what left the original."""

    @property
    def sequences(self) -> int:
        """The number of calibration sequences."""

    def run(self, weights: Mapping[str, torch.Tensor], chosen: Sequence[int]) -> torch.Tensor:
        """Return what leaves the layer [chosen, length, hidden] with these weights [out, in] in place of its own, by
        the path of the linear; gradients reach them."""

    def target(self, chosen: Sequence[int]) -> torch.Tensor:
        """Return what left the original's layer [chosen, length, hidden]."""

    def token_weights(self, chosen: Sequence[int]) -> torch.Tensor | float:
        """Return how much an error counts at each token [chosen, length, 1]; 1 where all count alike."""


class Learner(Protocol):
    def learn(self, inputs: Sequence[Mapping[str, Linear]], block: Block, number: int) -> dict[str, Stored]:
        """Round all linears of layer `number` together, and say what is written of each, by its path. Those of one of
        `inputs` share it: one `stats`, one `columns`."""


class Rounder(Protocol):
    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        """Round `linear.stored()` of each and say what is written. They share an input: one `stats`, one `columns`."""
