"""Scales: folding changes no function, the loss is the true output error, and the search never loses to plain
rounding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.native.group import Linear, LinearProducer, NormProducer, Stats
from backend.engines.native.methods.awq import group_loss, search_scales
from backend.engines.native.methods.nearest import Nearest
from backend.engines.native.methods.rounding import rounded
from tests.properties import examples
from tests.unit.engines.native.rounding_cases import a_rounding


def generator(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)


def skewed(rows: int, columns: int, seed: int) -> Any:
    """Inputs [rows, columns] whose channels differ in size by orders of magnitude, as a trained model's do."""
    import torch

    drawn = generator(seed)
    return torch.randn(rows, columns, generator=drawn) * torch.exp(1.5 * torch.randn(columns, generator=drawn))


def stats_of(inputs: Any) -> Stats:
    return Stats(len(inputs), inputs.abs().mean(0), inputs.abs().amax(0), gram=inputs.T @ inputs)


def linear(weight: Any, stats: Stats) -> Linear:
    import torch

    return Linear("linear", weight, weight, torch.ones(weight.shape[0]), torch.ones(weight.shape[1]), stats)


def test_the_loss_is_the_squared_output_error_over_the_calibration_tokens() -> None:
    import torch

    inputs, error = skewed(50, 32, 0), torch.randn(8, 32, generator=generator(1))
    direct = float((inputs @ error.T).pow(2).sum())
    assert stats_of(inputs).squared(error) == pytest.approx(direct, rel=1e-4)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), symmetric=st.booleans())
def test_the_search_never_loses_to_plain_rounding(seed: int, symmetric: bool) -> None:
    import torch

    stats, rounding = stats_of(skewed(64, 64, seed)), a_rounding("awq", 4, symmetric)
    members = [linear(torch.randn(32, 64, generator=generator(seed + n)), stats) for n in range(2)]
    norm = NormProducer(torch.rand(64, generator=generator(seed)) + 0.5, torch.bfloat16)
    columns = search_scales(members, norm, rounding)
    assert group_loss(members, columns, rounding) <= group_loss(members, torch.ones(64), rounding)


def test_the_search_leaves_with_the_linears_what_they_lose() -> None:
    """What rounding asks for again: the loss of plain rounding, and each row's under the scales found."""
    import torch

    stats, rounding = stats_of(skewed(64, 64, 3)), a_rounding("awq", 4, False)
    members = [linear(torch.randn(32, 64, generator=generator(n)), stats) for n in range(2)]
    columns = search_scales(members, NormProducer(torch.ones(64), torch.bfloat16), rounding)
    for member in members:
        member.columns = columns
        assert member.plain == pytest.approx(stats.squared(member.weight - rounded(member.weight, rounding)))
        wrong = member.weight - member.undone(rounded(member.stored(), rounding))
        assert member.scaled is not None
        torch.testing.assert_close(member.scaled, stats.row_losses(wrong))


def test_what_is_reported_is_the_loss_of_what_is_stored() -> None:
    """By clipping after scaling, rows scaled too: the figures that were kept are those worked out anew."""
    import torch

    stats, rounding = stats_of(skewed(64, 64, 3)), a_rounding("awq", 4, False)
    members = [linear(torch.randn(32, 64, generator=generator(n)), stats) for n in range(2)]
    for member in members:
        member.rows = torch.rand(32, generator=generator(7)) + 0.5
    columns = search_scales(members, NormProducer(torch.ones(64), torch.bfloat16), rounding)
    for member in members:
        member.columns = columns
    stored = Nearest(rounding, lambda _values, _grid: {}, compared=True, clipped=True).store(members)
    for member, each in zip(members, stored, strict=True):
        assert each.report["relative_error"] == pytest.approx(member.relative_error(each.effective), rel=1e-4)
        plain = member.relative_error(rounded(member.weight, rounding))
        assert each.report["rtn_relative_error"] == pytest.approx(plain, rel=1e-4)


def test_on_skewed_activations_the_search_wins_clearly() -> None:
    import torch

    stats, rounding = stats_of(skewed(256, 128, 0)), a_rounding("awq", 4, False)
    members = [linear(torch.randn(64, 128, generator=generator(1)), stats)]
    columns = search_scales(members, NormProducer(torch.ones(128), torch.bfloat16), rounding)
    assert group_loss(members, columns, rounding) < 0.7 * group_loss(members, torch.ones(128), rounding)


@examples(40)
@given(seed=st.integers(0, 1000))
def test_scales_for_a_norm_are_exact_in_its_stored_type(seed: int) -> None:
    import torch

    weight = torch.randn(64, generator=generator(seed)).bfloat16().float()
    weight[3] = 0
    norm = NormProducer(weight, torch.bfloat16)
    scales = norm.exact(torch.exp(torch.randn(64, generator=generator(seed + 1))))
    assert bool((scales > 0).all())
    torch.testing.assert_close(norm.fold(scales).float() * scales, weight, rtol=1e-6, atol=0)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), kv_heads=st.sampled_from([1, 2, 4]), repeats=st.sampled_from([1, 2, 3]))
def test_folding_into_values_shared_by_query_heads_changes_no_output(seed: int, kv_heads: int, repeats: int) -> None:
    import torch

    head_dim, drawn = 8, generator(seed)
    inputs = torch.randn(5, 16, generator=drawn)
    value = torch.randn(kv_heads * head_dim, 16, generator=drawn)
    output = torch.randn(12, kv_heads * repeats * head_dim, generator=drawn)

    def attention(value: Any, output: Any) -> Any:
        heads = (inputs @ value.T).view(5, kv_heads, 1, head_dim).expand(5, kv_heads, repeats, head_dim)
        return heads.reshape(5, -1) @ output.T

    rows = torch.arange(value.shape[0]).view(kv_heads, 1, head_dim).expand(kv_heads, repeats, head_dim)
    producer = LinearProducer(rows.flatten(), value.shape[0])
    scales = producer.tie(torch.rand(output.shape[1], generator=drawn) + 0.1)
    folded = attention(value / producer.rows(scales)[:, None], output * scales)
    torch.testing.assert_close(folded, attention(value, output), rtol=1e-4, atol=1e-4)
