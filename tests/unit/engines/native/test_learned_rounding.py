"""A step of learned rounding moves everything by the sign of torch's own gradients through the rounded weight."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.engines.native.methods.autoround import FACTOR_RATE, Learnable
from backend.engines.native.methods.rounding import Snapped, parameters, snapped
from tests import matrices
from tests.properties import examples
from tests.unit.engines.native.rounding_cases import a_rounding

OUT, IN, RATE = 16, 64, 0.02


def learnable(bits: int, seed: int, shrink: float) -> Learnable:
    """Over a part of the weights' range, so that some lie outside of the grid; scaled in rows and columns."""
    import torch

    linear = matrices.linear(matrices.randn(OUT, IN, seed=seed), matrices.stats_of(matrices.randn(8, IN, seed=seed)))
    linear.rows = torch.linspace(0.5, 2.0, OUT)
    linear.columns = torch.linspace(2.0, 0.3, IN)
    rounding = a_rounding("autoround", bits, False)
    grid = parameters(linear.stored(), rounding, torch.full((OUT, 1), shrink))
    return Learnable(linear, Snapped(snapped(linear.stored(), grid, rounding), grid), rounding)


def gradients(rounded: Learnable, offsets: Any, factors: Any, slope: Any) -> tuple[Any, Any]:
    """Those of the sum of slope x effective weight, by torch: straight through what rounds."""
    import torch

    def passing(smooth: Any, stepped: Any) -> Any:
        return smooth + (stepped - smooth).detach()

    offsets, factors = offsets.clone().requires_grad_(), factors.clone().requires_grad_()
    smooth = rounded.scale * factors
    scale = passing(smooth, smooth.detach().to(rounded.rounding.scale_dtype).float())
    steps = rounded.weight / scale + offsets
    points = (passing(steps, steps.round()) + rounded.zero).clamp(rounded.low, rounded.high) - rounded.zero
    effective = rounded.linear.undone((points * scale).flatten(1))
    assert torch.equal(effective, rounded.effective())
    (effective * slope).sum().backward()
    return offsets.grad, factors.grad


@examples(40)
@given(bits=st.sampled_from([2, 3, 4, 8]), seed=st.integers(0, 1000), shrink=st.sampled_from([0.6, 1.0]))
def test_a_step_goes_against_the_sign_of_the_gradients(bits: int, seed: int, shrink: float) -> None:
    import torch

    changed = learnable(bits, seed, shrink)
    for number in range(3):
        slope = matrices.randn(OUT, IN, seed=seed + 1 + number)
        offsets, factors = changed.offsets.clone(), changed.factors.clone()
        by_offsets, by_factors = gradients(changed, offsets, factors, slope)
        changed.step(slope, RATE)
        assert torch.equal(changed.offsets, (offsets - RATE * by_offsets.sign()).clamp(-0.5, 0.5))
        clear = by_factors.abs() > 1e-4 * by_factors.abs().max()  # sums of another order may differ in sign at zero
        expected = factors - RATE * FACTOR_RATE * by_factors.sign()
        assert torch.equal(changed.factors[clear], expected[clear])
        assert clear.sum() > 0.9 * clear.numel()
    if shrink < 1:
        assert (by_offsets == 0).any(), "weights outside of the grid do not move"
