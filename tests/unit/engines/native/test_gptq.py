"""GPTQ and its sweep: against the textbook's one weight at a time, against plain rounding, and with masks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.native.files.schemes import weight_only
from backend.engines.native.methods import clip_search, gptq
from backend.engines.native.methods.brain_surgeon import GramFactor, TokenFactor, factor_of, sweep
from backend.engines.native.methods.rounding import Snapped, compress, parameters, rounded, snapped
from tests.matrices import randn, skewed, stats_of


def w4(group: int | None = 32, *, symmetric: bool = True) -> Any:
    import torch

    return weight_only(4, group, symmetric=symmetric, dtype=torch.bfloat16)


def textbook(weight: Any, inputs: Any, grid: Any, damping: float = 0.01) -> Any:
    """One weight at a time by the Optimal Brain Quantization update with the inverse Hessian of what is left, in
    fp64."""
    import torch

    hessian = inputs.double().T @ inputs.double()
    hessian += damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)
    scale, zero = grid.scale.double(), grid.zero_point.double()
    size = weight.shape[1] // scale.shape[1]
    result = weight.double().clone()
    for column in range(weight.shape[1]):
        left = torch.linalg.inv(hessian[column:, column:])
        for number, row in enumerate(result):
            s, z = scale[number, column // size], zero[number, column // size]
            remaining = (((row[column] / s).round() + z).clamp(-8, 7) - z) * s
            row[column:] -= (row[column] - remaining) / left[0, 0] * left[0]
            row[column] = remaining
    return result.float()


def loss(weight: Any, other: Any, inputs: Any) -> float:
    return float((inputs @ (weight - other).T).square().sum())


@pytest.mark.parametrize("symmetric", [True, False])
def test_it_is_the_optimal_brain_update_one_weight_at_a_time(symmetric: bool) -> None:
    import torch

    inputs, weight, rounding = skewed(96, 32), randn(3, 32, seed=1), w4(16, symmetric=symmetric)
    grid = parameters(weight, rounding)
    expected = textbook(weight, inputs, grid)
    start = Snapped(snapped(weight, grid, rounding), grid)
    values, used, *_ = gptq.quantize(weight, stats_of(inputs), rounding, start=start)
    assert torch.equal(used.scale, grid.scale)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)


def test_the_second_of_two_weights_takes_the_exact_best_value() -> None:
    """With two inputs and the first weight fixed, least squares says what the second must be."""
    import torch

    inputs, weight = randn(50, 2), randn(1, 2, seed=1)
    factor = GramFactor(inputs.T @ inputs, damping=1e-7)

    class FixFirst:
        def block(self, start: int, columns: Any, diagonal: Any) -> None:
            self.columns = columns

        def column(self, index: int) -> Any:
            return torch.tensor([0.25]) if index == 0 else self.columns[1]

        def whole_block(self, columns: Any, upper: Any) -> None:
            return None

    target = inputs @ weight[0] - 0.25 * inputs[:, 0]
    best = (inputs[:, 1] @ target) / (inputs[:, 1] @ inputs[:, 1])
    assert float(sweep(weight, factor, FixFirst())[0, 1]) == pytest.approx(float(best), rel=1e-4)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1000), symmetric=st.booleans(), act_order=st.booleans(), group=st.sampled_from([32, 64, None])
)
def test_no_row_loses_to_plain_rounding(seed: int, symmetric: bool, act_order: bool, group: int | None) -> None:
    import torch

    inputs, weight, rounding = skewed(80, 64, seed), randn(24, 64, seed=seed + 1), w4(group, symmetric=symmetric)
    stats = stats_of(inputs)
    values, grid, losses, _ = gptq.quantize(weight, stats, rounding, act_order=act_order)
    plain = snapped(weight, parameters(weight, rounding), rounding)
    after, before = (stats.row_losses(weight - other) for other in (values, plain))
    assert bool((after <= before * (1 + 1e-5)).all())
    torch.testing.assert_close(losses, after)
    assert snapped(values, grid, rounding).sub(values).abs().max() < 1e-6 * weight.abs().max()


@pytest.mark.parametrize("act_order", [False, True])
def test_on_correlated_inputs_it_wins_clearly(act_order: bool) -> None:
    inputs, weight, rounding = skewed(512, 256), randn(64, 256, seed=1), w4(128)
    values = gptq.quantize(weight, stats_of(inputs), rounding, act_order=act_order).values
    share = 0.5 if act_order else 0.7
    assert loss(weight, values, inputs) < share * loss(
        weight, snapped(weight, parameters(weight, rounding), rounding), inputs
    )


def test_what_is_stored_reads_back_as_what_was_chosen() -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor

    for symmetric in (True, False):
        rounding, weight = w4(symmetric=symmetric), randn(32, 64, seed=1)
        values, grid, *_ = gptq.quantize(weight, stats_of(skewed(80, 64)), rounding)
        tensors = {k: v.float() if v.is_floating_point() else v for k, v in compress(values, rounding, grid).items()}
        back = BaseCompressor.get_value_from_registry(rounding.format).decompress(tensors, rounding.scheme)["weight"]
        assert torch.equal(back, values)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_pruned_weights_stay_zero(symmetric: bool, act_order: bool) -> None:
    inputs, rounding = skewed(80, 64), w4(symmetric=symmetric)
    mask = randn(24, 64, seed=3) > 0
    weight = randn(24, 64, seed=1) * mask
    values = gptq.quantize(weight, stats_of(inputs), rounding, act_order=act_order, mask=mask).values
    assert not values[~mask].any()
    assert loss(weight, values, inputs) < loss(weight, snapped(weight, parameters(weight, rounding), rounding), inputs)


@pytest.mark.parametrize("as_rows", [False, True])
def test_activation_order_is_the_textbook_on_sorted_columns_with_groups_in_place(as_rows: bool) -> None:
    import torch

    inputs, weight, rounding = skewed(96, 32), randn(3, 32, seed=1), w4(None)
    order = inputs.square().sum(0).argsort(descending=True)
    grid = parameters(weight, rounding)
    expected = textbook(weight[:, order], inputs[:, order], grid)[:, order.argsort()]
    values, used, *_ = gptq.quantize(weight, stats_of(inputs, as_rows=as_rows), rounding, act_order=True)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(used.scale, grid.scale)


@pytest.mark.parametrize("order", [None, "reversed"])
def test_the_token_form_gives_the_factor_of_the_gram_form(order: str | None) -> None:
    """40 tokens of 300 inputs: never an [in, in] matrix, the same rows of the factor."""
    import torch

    inputs = skewed(40, 300)
    chosen = torch.arange(299, -1, -1) if order else None
    tokens = factor_of(stats_of(inputs, as_rows=True), chosen)
    assert isinstance(tokens, TokenFactor)
    dense = factor_of(stats_of(inputs.double()), chosen)
    for start, stop in [(0, 128), (128, 256), (256, 300)]:
        expected = dense.rows(start, stop).float()
        torch.testing.assert_close(tokens.rows(start, stop), expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def test_the_factor_is_the_cholesky_factor_of_the_inverse() -> None:
    import torch

    gram = skewed(100, 20).double()
    gram = gram.T @ gram
    damped = gram + 0.01 * gram.diagonal().mean() * torch.eye(20, dtype=torch.float64)
    expected = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    torch.testing.assert_close(GramFactor(gram).rows(0, 20), expected)


@pytest.mark.parametrize("features", [129, 300])
def test_a_factor_that_is_inverted_by_halves_is_the_inverse(features: int) -> None:
    import torch

    inputs = randn(2 * features, features).double()
    gram = inputs.T @ inputs
    upper = GramFactor(gram, damping=1e-12).rows(0, features)
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ gram, torch.eye(features, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("features", [64, 300])
def test_a_gram_matrix_that_rounding_made_indefinite_gets_more_damping(features: int) -> None:
    """Of a matrix whose least eigenvalue lies below what the damping lifts."""
    import torch

    vectors, _ = torch.linalg.qr(randn(features, features).double())
    values = torch.linspace(-0.02, 1.0, features, dtype=torch.float64)
    upper = GramFactor(vectors @ values.diag() @ vectors.T, damping=1e-3).rows(0, features)
    assert bool(upper.isfinite().all())
    lifted = 1e-1 * values.mean()
    torch.testing.assert_close(
        torch.linalg.inv(upper.T @ upper), vectors @ (values + lifted).diag() @ vectors.T, rtol=1e-6, atol=1e-6
    )


def test_dead_inputs_and_no_tokens_at_all_are_rounded_plainly() -> None:
    import torch

    rounding, weight = w4(), randn(8, 64, seed=1)
    plain = snapped(weight, parameters(weight, rounding), rounding)
    inputs = skewed(80, 64)
    inputs[:, 32:] = 0
    values = gptq.quantize(weight, stats_of(inputs), rounding).values
    assert torch.equal(values[:, 32:], plain[:, 32:])
    assert not torch.equal(values[:, :32], plain[:, :32])
    unseen = gptq.quantize(weight, stats_of(torch.zeros(0, 64)), rounding).values
    assert torch.equal(unseen, plain)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), symmetric=st.booleans())
def test_clipping_never_costs_a_row(seed: int, symmetric: bool) -> None:
    import torch

    inputs, rounding = skewed(80, 64, seed), w4(symmetric=symmetric)
    weight, stats = randn(16, 64, seed=seed + 1), stats_of(inputs)
    ranges = clip_search.search_ranges(weight, stats, rounding)
    assert torch.equal(ranges.values, snapped(weight, ranges.grid, rounding))
    after, before = (stats.row_losses(weight - values) for values in (ranges.values, rounded(weight, rounding)))
    assert ranges.losses is not None and ranges.plain is not None
    torch.testing.assert_close(ranges.losses, after)
    torch.testing.assert_close(ranges.plain, before)
    assert bool((after <= before * (1 + 1e-5)).all())
    assert float(after.sum()) < float(before.sum())


def test_clipping_believes_what_plain_rounding_is_known_to_lose() -> None:
    """Told that it loses nothing, no range is cut."""
    import torch

    inputs, weight, rounding = skewed(80, 64), randn(16, 64, seed=1), w4(symmetric=False)
    ranges = clip_search.search_ranges(weight, stats_of(inputs), rounding, torch.zeros(16))
    assert torch.equal(ranges.values, rounded(weight, rounding))


def test_clipping_finds_the_best_of_its_steps_for_one_group() -> None:
    """One group, one row: every step tried by hand with the true outputs."""
    import torch

    inputs, weight, rounding = skewed(60, 32), randn(1, 32, seed=2) ** 3, w4(32)
    tried = [
        (
            loss(
                weight, snapped(weight, parameters(weight, rounding, torch.tensor([[1 - step / 20]])), rounding), inputs
            ),
            step,
        )
        for step in range(11)
    ]
    best = parameters(weight, rounding, torch.tensor([[1 - min(tried)[1] / 20]]))
    assert torch.equal(clip_search.search_ranges(weight, stats_of(inputs), rounding).grid.scale, best.scale)
    assert torch.equal(
        clip_search.search_ranges(weight, stats_of(inputs, as_rows=True), rounding).grid.scale, best.scale
    )


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), every=st.sampled_from([2, 3]))
def test_a_search_in_wider_steps_ends_near_the_one_in_all(seed: int, every: int) -> None:
    """Never worse than the full range, nor than any of the wide steps; and for most rows what all steps would have
    found."""
    import torch

    inputs, weight, rounding = skewed(60, 32, seed), randn(64, 32, seed=seed + 1) ** 3, w4(32)
    stats = stats_of(inputs)
    fine, wide = (clip_search.search_ranges(weight, stats, rounding, every=each).losses for each in (1, every))
    assert fine is not None and wide is not None
    for step in range(0, 11, every):
        grid = parameters(weight, rounding, torch.full((64, 1), 1 - step / 20))
        tried = stats.row_losses(weight - snapped(weight, grid, rounding))
        assert bool((wide <= tried * (1 + 1e-4)).all())
    assert float(fine.sum()) <= float(wide.sum()) * (1 + 1e-5)
    assert float((wide <= fine * (1 + 1e-4)).float().mean()) > 0.5


def test_gptq_after_clipping_keeps_the_searched_grid() -> None:
    import torch

    inputs, weight, rounding = skewed(200, 64), randn(16, 64, seed=1), w4(symmetric=False)
    start = clip_search.search_ranges(weight, stats_of(inputs), rounding)
    values, used, *_ = gptq.quantize(weight, stats_of(inputs), rounding, start=start)
    assert torch.equal(used.scale, start.grid.scale)
    assert loss(weight, values, inputs) < loss(weight, start.values, inputs)
