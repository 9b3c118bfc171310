"""X'X of calibration tokens, also where it is made of integers: what GPTQ's inverse and reported losses need of it."""

from __future__ import annotations

import pytest
import torch

from backend.domain.errors import WorkError
from backend.engines.native import input_statistics as gram
from backend.engines.native.files.schemes import weight_only
from backend.engines.native.group import Stats
from backend.engines.native.input_statistics import Collected, Tally
from backend.engines.native.methods import gptq
from backend.engines.native.methods.brain_surgeon import DAMPING

TOKENS = 2 * gram.PIECE + 700
"""Two whole pieces and one that is not; all of them are made integers where the processor multiplies those."""


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def uneven(features: int, mean: float = 0.0) -> torch.Tensor:
    """[tokens, features] of channels that differ in size, each with a mean of about `mean` standard deviations."""
    return (torch.randn(TOKENS, features) + mean * torch.randn(features)) * torch.rand(features).mul(3).exp()


def gram_matrices(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """X'X as the engine makes it, and in double precision."""
    tally = Tally(rows.shape[1], 1 << 20, Collected(), "cpu")
    for part in rows.split(3000):
        tally.add(part)
    return tally.stats("x").matrix().double(), rows.double().T @ rows.double()


@pytest.mark.parametrize("features", [5, 128, 200, 1100])
@pytest.mark.parametrize("mean", [0.0, 3.0, 10.0])
def test_losses_are_right(features: int, mean: float) -> None:
    result, true = gram_matrices(uneven(features, mean))
    errors = torch.rand(64, features).double() - 0.5
    losses, expected = (((errors @ each) * errors).sum(1) for each in (result, true))
    assert float((losses / expected - 1).abs().max()) < 1e-2


@pytest.mark.parametrize("mean", [0.0, 3.0, 10.0])
def test_the_inverse_is_off_by_far_less_than_its_damping(mean: float) -> None:
    """Relative to what is inverted, in every direction: with H = X'X + damping, the eigenvalues of H^-1/2 error H^-1/2.

    Of random tokens; those of a trained model are off by more (docs/decisions/0012)."""
    result, true = gram_matrices(uneven(256, mean))
    damped = true + DAMPING * true.diagonal().mean() * torch.eye(len(true))
    factor = torch.linalg.cholesky(damped)
    left = torch.linalg.solve_triangular(factor, result - true, upper=False)
    error = torch.linalg.solve_triangular(factor, left.T, upper=False)
    assert float(torch.linalg.eigvalsh(error).abs().max()) < 0.05


def test_it_stays_positive_semidefinite_where_channels_depend_on_each_other() -> None:
    """Entry by entry rounded, as 16-bit products are, it would not."""
    rows = torch.randn(TOKENS, 16) @ torch.randn(16, 256) * torch.rand(256).mul(6).exp()
    result, true = gram_matrices(rows)
    power = float(true.diagonal().mean())
    assert float(torch.linalg.eigvalsh(result)[0]) > -1e-3 * DAMPING * power
    product = rows.bfloat16().T @ rows.bfloat16()
    assert float(torch.linalg.eigvalsh(product.double())[0]) < -0.1 * DAMPING * power


def test_one_token_that_has_all_the_power_of_a_channel_adds_a_percent_to_it_at_most() -> None:
    rows = torch.randn(gram.PIECE, 128)
    rows[:, 3] *= 1e-3
    rows[77, 3] = 50.0
    result, true = gram_matrices(rows)
    assert float((result.diagonal() / true.diagonal() - 1).abs().max()) < 0.0106


@pytest.mark.parametrize("times", [30.0, 1000.0])
def test_tokens_of_massive_activations_cost_the_others_little(times: float) -> None:
    """Large models have them (Sun et al. 2024, arXiv 2402.17762): at the first token a few channels hold a thousand
    times their usual value, so that as integers the other tokens are zero there. GPTQ's error on those tokens, with and
    without integers."""
    rows = torch.randn(TOKENS, 256) @ (torch.randn(256, 256) / 23 + torch.eye(256))
    ordinary = torch.arange(TOKENS) % 512 != 0
    rows[~ordinary] = torch.randn(256)
    rows[:, 5:9][~ordinary] *= times
    result, true = gram_matrices(rows)
    weight, rounding = torch.randn(64, 256), weight_only(4, 128, symmetric=True, dtype=torch.bfloat16)
    losses = []
    for matrix in (result, true):
        stats = Stats(TOKENS, rows.abs().mean(0), rows.abs().amax(0), matrix.float(), None)
        error = weight - gptq.quantize(weight, stats, rounding, act_order=True).values
        losses.append(float((rows[ordinary] @ error.T).square().sum()))
    assert losses[0] < 1.05 * losses[1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_noticed(bad: float) -> None:
    rows = torch.randn(TOKENS, 64)
    rows[TOKENS // 2, 5] = bad
    tally = Tally(64, TOKENS, Collected(magnitudes=False), "cpu")
    tally.add(rows)
    with pytest.raises(WorkError, match="The input of x is not finite"):
        tally.stats("x")


def test_a_channel_that_is_never_used_stays_zero() -> None:
    rows = uneven(64)
    rows[:, 9] = 0
    result, _ = gram_matrices(rows)
    assert not result[9].any() and not result[:, 9].any()
