"""AutoRound: the rounding of every weight and the scale of every group are learned, so that a layer's output stays.

Cheng et al. 2023 (arXiv 2309.05516), section 3: each weight gets an offset before it is rounded, within half a step,
and both are moved by the sign of the gradient of the layer's squared output error, at a rate that falls to zero. Four
things differ. The start is rounding to nearest on searched ranges, after AWQ's scales where they are asked for; the
paper starts from full ranges. A group learns a factor of its scale in place of factors of its least and largest weight,
and at a small share of the rate. A step reads one sequence, below 4 bits four, where the paper's reads eight.
What enters a layer is what the layers before it compute as they are stored, and the error is that to what left the
original's layer, so that it makes up for errors before it, as in the authors' own program (auto-round). A layer whose
output over the whole calibration text does not gain keeps its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend.domain.needs.gradient_passes import sequences_per_step
from backend.domain.recipe.methods import AUTOROUND, QUANTIZE
from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Block, Linear, Stored
from backend.engines.native.methods.awq import AwqScaler
from backend.engines.native.methods.nearest import Nearest
from backend.engines.native.methods.pipelines import Pipeline, grouped
from backend.engines.native.methods.rounding import Grid, Rounding, Snapped, Write, in_groups

if TYPE_CHECKING:
    import torch

FACTOR_RATE = 0.05
"""Share of what an offset moves by in a step that the factor of a scale moves by: at most 0.026 in all steps. At 1, as
in the paper, it loses more (docs/decisions/0068)."""
TOGETHER = 4
"""Sequences that pass a layer at once where its error over all is asked for."""


class Learnable:
    """A linear whose stored weight [out, in] is rounded with learned `offsets` [out, groups, group size] and `factors`
    [out, groups, 1] of the scales, from the `start` on."""

    def __init__(self, linear: Linear, start: Snapped, rounding: Rounding) -> None:
        import torch

        self.linear, self.start, self.rounding = linear, start, rounding
        bits = rounding.scheme.weights.num_bits
        self.low, self.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.weight = in_groups(linear.stored(), rounding)
        self.scale = start.grid.scale[..., None]
        self.zero = start.grid.zero_point.to(self.weight.dtype)[..., None]
        self.offsets = torch.zeros_like(self.weight)
        self.factors = torch.ones_like(self.scale)

    def effective(self) -> torch.Tensor:
        """Return the weight [out, in] as it is rounded now, in the original's units."""
        return self.linear.undone(self.learned().values)

    def learned(self) -> Snapped:
        """Return the weight as it is now, on its grid."""
        scale = self._scale()
        points = (self.weight / scale).add_(self.offsets).round_().add_(self.zero).clamp_(self.low, self.high)
        values = points.sub_(self.zero).mul_(scale).flatten(1)
        return Snapped(values, Grid(scale[..., 0], self.start.grid.zero_point), plain=self.start.plain)

    def step(self, gradient: torch.Tensor, rate: float) -> None:
        """Move offsets by `rate`, and factors by a share of it, against the sign of their gradients.

        `gradient` [out, in] is that of the loss at `effective()`.

        It passes the rounding as if nothing were rounded (the straight-through estimator, Bengio et al. 2013, arXiv
        1308.3432), but not the ends of the grid. Masks are numbers here: comparing takes ten times as long on a
        processor.
        """
        # 1. Where a weight lies in steps of its grid, the point that it gets, and 1 where that is inside of the grid.
        slope = in_groups(self.linear.undone(gradient), self.rounding)
        exact = self.weight / self._scale()
        unbounded = (exact + self.offsets).round_().add_(self.zero)
        points = unbounded.clamp(self.low, self.high)
        inside = 1 - unbounded.sub_(points).abs_().clamp_(max=1)
        # 2. The gradient of a factor is what the points of its group change by, that of an offset the slope itself.
        change = points.sub_(self.zero).sub_(exact.mul_(inside)).mul_(slope).sum(-1, keepdim=True)
        self.factors.add_(change.sign_(), alpha=-rate * FACTOR_RATE)
        self.offsets.add_(slope.sign_().mul_(inside), alpha=-rate).clamp_(-0.5, 0.5)

    def _scale(self) -> torch.Tensor:
        """Return the learned scales [out, groups, 1], rounded to the dtype that they are stored in."""
        return (self.scale * self.factors).to(self.rounding.scale_dtype).float()


def _squared(block: Block, weights: Mapping[str, torch.Tensor], chosen: Sequence[int]) -> torch.Tensor:
    """Return the squared error of what leaves the layer [chosen, length, hidden], each token as it counts."""
    return (block.run(weights, chosen) - block.target(chosen)).square() * block.token_weights(chosen)


class Losses(NamedTuple):
    """The squared output error of a layer over all sequences, at the start and as learned."""

    start: float
    learned: float


class LearnedRounder(Nearest):
    """Rounds to nearest as a start, and learns from there with the whole layer at hand."""

    def __init__(self, rounding: Rounding, write: Write, *, steps: int, clipped: bool, seed: int) -> None:
        super().__init__(rounding, write, compared=True, clipped=clipped)
        self.steps, self.seed = steps, seed
        self.sequences = sequences_per_step(rounding.scheme.weights.num_bits)

    def learn(self, inputs: Sequence[Mapping[str, Linear]], block: Block, number: int) -> dict[str, Stored]:
        """Return what is stored of each linear of layer `number`, by its path; those of one of `inputs` share it."""
        # 1. Round to nearest: the start.
        learnables: dict[str, Learnable] = {}
        for linears in inputs:
            starts = self.snap([linear.stored() for linear in linears.values()], list(linears.values()))
            for (name, linear), start in zip(linears.items(), starts, strict=True):
                learnables[name] = Learnable(linear, start, self.rounding)
        # 2. Learn, and keep the start where the whole text is none the better.
        losses = self._descend(learnables, block, number)
        gained = losses.learned < losses.start
        # 3. Store either.
        stored = {}
        for name, learnable in learnables.items():
            snapped = learnable.learned() if gained else learnable.start
            stored[name] = self._stored(learnable.linear, snapped, {})
            if losses.start > 0:
                share = min(losses.learned, losses.start) / losses.start
                stored[name].report["layer_error_share"] = share**0.5
        return stored

    def _descend(self, learnables: Mapping[str, Learnable], block: Block, number: int) -> Losses:
        """Make all steps; return the losses before and after."""
        start = self._loss(learnables, block)
        for step, chosen in enumerate(self._sequences(block, number)):
            weights = {name: learnable.effective().requires_grad_() for name, learnable in learnables.items()}
            _squared(block, weights, chosen).mean().backward()  # type: ignore[no-untyped-call]
            for name, learnable in learnables.items():
                gradient = weights[name].grad
                if gradient is not None:  # an expert that no token of these sequences reached has none
                    learnable.step(gradient, (1 - step / self.steps) / self.steps)
        return Losses(start, self._loss(learnables, block))

    def _sequences(self, block: Block, number: int) -> Iterator[list[int]]:
        """Yield the sequences of each step: drawn anew for each, by the seed and the layer."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        for _ in range(self.steps):
            yield torch.randperm(block.sequences, generator=generator)[: self.sequences].tolist()

    def _loss(self, learnables: Mapping[str, Learnable], block: Block) -> float:
        """Return the squared output error over all sequences, as rounded now."""
        import torch

        with torch.no_grad():
            weights = {name: learnable.effective() for name, learnable in learnables.items()}
            total = 0.0
            for begin in range(0, block.sequences, TOGETHER):
                chosen = list(range(begin, min(begin + TOGETHER, block.sequences)))
                total += float(_squared(block, weights, chosen).sum())
        return total


def autoround(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    form, tuning = grouped(request, dtype), request.tuning
    scaler = AwqScaler(form.rounding) if tuning.get("awq_scales") else None
    rounder = LearnedRounder(
        form.rounding,
        form.write,
        steps=int(tuning.get("learning_steps") or QUANTIZE[AUTOROUND].defaults["learning_steps"]),
        clipped=bool(tuning.get("clip")),
        seed=request.seed,
    )
    return Pipeline(rounder, form.config, form.rounding, scaler=scaler, learner=rounder, magnitudes=scaler is not None)


PIPELINES = {"autoround": autoround}
