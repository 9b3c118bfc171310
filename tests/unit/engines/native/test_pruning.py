"""Pruning: scores by their definition, patterns that hold exactly, and SparseGPT against least squares."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.domain.errors import ImpossibleStack
from backend.engines.native.methods import pruning
from tests.matrices import randn, skewed, stats_of

PATTERNS = ["unstructured", "2:4", "4:8"]
METHODS = ["magnitude", "wanda", "sparsegpt"]


def pruned(method: str, weight: Any, inputs: Any, sparsity: float, pattern: Any, *, as_rows: bool = False) -> Any:
    stats = stats_of(inputs, as_rows=as_rows)
    if method == "sparsegpt":
        return pruning.by_sparsegpt(weight, stats, sparsity, pattern)
    mask = (
        pruning.by_wanda(weight, stats, sparsity, pattern)
        if method == "wanda"
        else pruning.by_magnitude(weight, sparsity, pattern)
    )
    return weight * mask


def loss(weight: Any, other: Any, inputs: Any) -> float:
    return float((inputs @ (weight - other).T).square().sum())


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), pattern=st.sampled_from(["2:4", "4:8"]), as_rows=st.booleans())
def test_n_of_m_holds_exactly(method: str, seed: int, pattern: str, as_rows: bool) -> None:
    weight = randn(12, 64, seed=seed)
    remaining = pruned(method, weight, skewed(20, 64, seed), 0.5, pattern, as_rows=as_rows) != 0
    keep, subject = map(int, pattern.split(":"))
    assert bool((remaining.view(12, -1, subject).sum(-1) == keep).all())


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), sparsity=st.floats(0.01, 0.99))
def test_unstructured_drops_exactly_the_share_asked_for(method: str, seed: int, sparsity: float) -> None:
    weight = randn(12, 64, seed=seed)
    zeros = int((pruned(method, weight, skewed(90, 64, seed), sparsity, "unstructured") == 0).sum())
    expected = 12 * round(sparsity * 64) if method == "wanda" else round(sparsity * 12 * 64)
    assert zeros == expected


def test_equal_weights_are_dropped_in_exact_number_too() -> None:
    import torch

    mask = pruning.by_magnitude(torch.ones(8, 32), 0.25, "unstructured")
    assert int((~mask).sum()) == 64


def test_magnitude_drops_the_smallest_weights_and_wanda_each_rows_lowest_scores() -> None:
    weight, inputs = randn(6, 16, seed=1), skewed(40, 16)
    values = sorted(weight.abs().flatten().tolist())
    mask = pruning.by_magnitude(weight, 0.5, "unstructured")
    assert sorted(weight.abs()[mask].tolist()) == values[48:]
    for as_rows in (False, True):
        remaining = pruning.by_wanda(weight, stats_of(inputs, as_rows=as_rows), 0.5, "unstructured")
        for row in range(6):
            scores = [abs(float(weight[row, j])) * float((inputs[:, j] ** 2).sum()) ** 0.5 for j in range(16)]
            lowest = sorted(range(16), key=lambda j: scores[j])[:8]
            assert sorted((~remaining[row]).nonzero().flatten().tolist()) == sorted(lowest)


def test_wanda_is_magnitude_where_all_inputs_are_alike_and_where_none_was_seen() -> None:
    import torch

    weight = randn(6, 16, seed=1)
    alike = stats_of(torch.ones(10, 16))
    by_rows = torch.stack([pruning.by_magnitude(row[None], 0.5, "unstructured")[0] for row in weight])
    assert torch.equal(pruning.by_wanda(weight, alike, 0.5, "unstructured"), by_rows)
    unseen = stats_of(torch.zeros(0, 16))
    assert torch.equal(pruning.by_wanda(weight, unseen, 0.5, "2:4"), pruning.by_magnitude(weight, 0.5, "2:4"))
    assert torch.equal(pruning.by_sparsegpt(weight, unseen, 0.5, "2:4") != 0, pruning.by_magnitude(weight, 0.5, "2:4"))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sparsegpt_loses_less_than_its_mask_uncorrected_and_than_magnitude(pattern: Any) -> None:
    weight, inputs = randn(32, 128, seed=1), skewed(400, 128)
    result = pruned("sparsegpt", weight, inputs, 0.5, pattern)
    corrected = loss(weight, result, inputs)
    assert corrected < 0.8 * loss(weight, weight * (result != 0), inputs)
    assert corrected < 0.5 * loss(weight, pruned("magnitude", weight, inputs, 0.5, pattern), inputs)


def test_sparsegpt_is_no_better_than_least_squares_on_its_mask_and_not_far_off() -> None:
    """For the mask it chose, the best weights are known exactly; the sweep, which never looks back, comes near."""
    import torch

    weight, inputs = randn(4, 24, seed=1), skewed(300, 24)
    result = pruned("sparsegpt", weight, inputs, 0.5, "2:4")
    best = torch.zeros_like(weight)
    for row, remaining in enumerate(result != 0):
        best[row, remaining] = (
            torch.linalg.lstsq(inputs[:, remaining].double(), (inputs @ weight[row]).double()[:, None])
            .solution[:, 0]
            .float()
        )
    least, outcome = loss(weight, best, inputs), loss(weight, result, inputs)
    assert least <= outcome * 1.001
    assert outcome - least < 0.5 * (loss(weight, weight * (result != 0), inputs) - least)


def test_the_first_dropped_weight_of_sparsegpt_is_the_optimal_brain_surgeons() -> None:
    """Of one block of four with two dropped, the mask is that of the lowest w^2 / [H^-1]_jj in the order of
    elimination."""
    import torch

    inputs, weight = skewed(60, 4).double(), randn(1, 4, seed=2).double()
    gram = inputs.T @ inputs
    gram += 0.01 * gram.diagonal().mean() * torch.eye(4, dtype=torch.float64)
    upper = torch.linalg.cholesky(torch.linalg.inv(gram), upper=True)
    scores = (weight[0] / upper.diagonal()) ** 2
    expected = set(scores.argsort()[:2].tolist())
    result = pruning.by_sparsegpt(weight.float(), stats_of(inputs.float()), 0.5, "2:4")
    assert set((result[0] == 0).nonzero().flatten().tolist()) == expected


def test_one_dropped_of_two_moves_the_other_by_the_surgeons_formula() -> None:
    """delta = -w_q / [H^-1]_qq x H^-1[:, q] (Hassibi and Stork 1992), q the first of two columns."""
    import torch

    inputs = randn(50, 2)
    inputs[:, 1] += 0.8 * inputs[:, 0]
    weight = torch.tensor([[0.01, 1.0]])
    gram = (inputs.T @ inputs).double()
    inverse = torch.linalg.inv(gram + 0.01 * gram.diagonal().mean() * torch.eye(2, dtype=torch.float64))
    moved = 1.0 - 0.01 / float(inverse[0, 0]) * float(inverse[0, 1])
    result = pruning.by_sparsegpt(weight, stats_of(inputs), 0.5, "unstructured")
    assert float(result[0, 0]) == 0.0
    assert float(result[0, 1]) == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_pattern_that_does_not_divide_the_inputs_is_refused(method: str) -> None:
    with pytest.raises(ImpossibleStack, match="does not divide the input size 12"):
        pruned(method, randn(4, 12), skewed(20, 12), 0.5, "4:8")


@pytest.mark.parametrize("pattern", ["2:4", "4:8"])
def test_n_of_m_keeps_the_best_combination_of_scores(pattern: Any) -> None:
    """Against every combination."""
    scores = randn(3, 8, seed=4).abs()
    keep, subject = map(int, pattern.split(":"))
    mask = pruning.n_of_m(scores, pattern)
    for row, start in itertools.product(range(3), range(0, 8, subject)):
        part = scores[row, start : start + subject].tolist()
        best = max(sum(part[i] for i in chosen) for chosen in itertools.combinations(range(subject), keep))
        assert float((scores * mask)[row, start : start + subject].sum()) == pytest.approx(best, rel=1e-6)
