"""AutoRound: the rounding of every weight and the scale of every group are learned, so that a layer's output stays.

Cheng et al. 2023 (arXiv 2309.05516), section 3: each weight gets an offset before it is rounded, within half a step,
and both are moved by the sign of the gradient of the layer's squared output error, at a rate that falls to zero. Two
things differ. The start is rounding to nearest on searched ranges, after AWQ's scales where they are asked for; the
paper starts from full ranges. A group learns a factor of its scale in place of factors of its least and largest weight.
What enters a layer is what the layers before it compute as they are stored, and the error is that to what left the
original's layer, so that it makes up for errors before it, as in the authors' own program (auto-round). A layer whose
output over the whole calibration text does not gain keeps its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend.domain.needs.gradient_passes import SEQUENCES
from backend.domain.recipe.methods import AUTOROUND, QUANTIZE
from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Block, Linear, Stored
from backend.engines.native.methods.awq import AwqScaler
from backend.engines.native.methods.nearest import Nearest
from backend.engines.native.methods.pipelines import Pipeline, grouped
from backend.engines.native.methods.rounding import Grid, Rounding, Snapped, Write, in_groups

if TYPE_CHECKING:
    import torch

LEAST_FACTOR, MOST_FACTOR = 0.5, 1.5
"""Smallest and largest learned factor of a group's scale."""


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
        self.offsets = torch.zeros_like(self.weight, requires_grad=True)
        self.factors = torch.ones_like(self.scale, requires_grad=True)

    def effective(self) -> torch.Tensor:
        """Return the weight [out, in] in the original's units, through which gradients pass as if nothing were
        rounded."""
        scale = _passing(self.scale * self.factors, _as_stored(self.scale * self.factors, self.rounding))
        steps = self.weight / scale + self.offsets
        points = (_passing(steps, steps.round()) + self.zero).clamp(self.low, self.high) - self.zero
        return self.linear.undone((points * scale).flatten(1))

    def step(self, rate: float) -> None:
        """Move offsets and factors by `rate` against the sign of their gradients, and forget those."""
        import torch

        with torch.no_grad():
            for learned, low, high in ((self.offsets, -0.5, 0.5), (self.factors, LEAST_FACTOR, MOST_FACTOR)):
                if learned.grad is not None:  # an expert that no token of these sequences reached has none
                    learned.add_(learned.grad.sign_(), alpha=-rate).clamp_(low, high)
                learned.grad = None

    def learned(self) -> Snapped:
        """Return the weight as it is now, on its grid."""
        import torch

        with torch.no_grad():
            scale = _as_stored(self.scale * self.factors, self.rounding)
            points = ((self.weight / scale + self.offsets).round_() + self.zero).clamp_(self.low, self.high)
            values = ((points - self.zero) * scale).flatten(1)
        return Snapped(values, Grid(scale[..., 0], self.start.grid.zero_point), plain=self.start.plain)


def _passing(smooth: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return `rounded`, with the gradient of `smooth`: the straight-through estimator (Bengio et al. 2013, arXiv
    1308.3432)."""
    return smooth + (rounded - smooth).detach()


def _as_stored(scale: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Round scales to the dtype that they are stored in."""
    return scale.detach().to(rounding.scale_dtype).float()


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
            weights = {name: learnable.effective() for name, learnable in learnables.items()}
            _squared(block, weights, chosen).mean().backward()  # type: ignore[no-untyped-call]
            for learnable in learnables.values():
                learnable.step((1 - step / self.steps) / self.steps)
        return Losses(start, self._loss(learnables, block))

    def _sequences(self, block: Block, number: int) -> Iterator[list[int]]:
        """Yield the sequences of each step: drawn anew for each, by the seed and the layer."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        for _ in range(self.steps):
            yield torch.randperm(block.sequences, generator=generator)[:SEQUENCES].tolist()

    def _loss(self, learnables: Mapping[str, Learnable], block: Block) -> float:
        """Return the squared output error over all sequences, as rounded now."""
        import torch

        with torch.no_grad():
            weights = {name: learnable.effective() for name, learnable in learnables.items()}
            total = 0.0
            for begin in range(0, block.sequences, SEQUENCES):
                chosen = list(range(begin, min(begin + SEQUENCES, block.sequences)))
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
