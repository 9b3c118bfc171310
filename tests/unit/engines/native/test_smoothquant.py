"""SmoothQuant: scales by their equation, the product unchanged, and what they are for: outliers in activations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.native.files.schemes import fp8, int8
from backend.engines.native.group import LinearProducer, NormProducer
from backend.engines.native.methods.nearest import input_scale
from backend.engines.native.methods.rounding import rounded
from backend.engines.native.methods.smoothquant import SmoothQuantScaler
from backend.layered.kv_cache_range import Extent
from tests.matrices import linear, randn, skewed, stats_of


def per_token_int8(inputs: Any) -> Any:
    """INT8 symmetric, one scale a token."""
    scale = inputs.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127.5
    return (inputs / scale).round().clamp(-128, 127) * scale


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), strength=st.floats(0.0, 1.0))
def test_scales_are_the_equation_and_leave_the_product_alone(seed: int, strength: float) -> None:
    import torch

    inputs, weights = skewed(40, 16, seed), [randn(8, 16, seed=seed + n) for n in (1, 2)]
    members = [linear(weight, stats_of(inputs)) for weight in weights]
    norm = NormProducer(torch.ones(16), torch.float32)
    scales = SmoothQuantScaler(strength).scales(members, norm)
    for j in range(16):
        act, weight = float(inputs[:, j].abs().max()), max(float(w[:, j].abs().max()) for w in weights)
        assert float(scales[j]) == pytest.approx(act**strength / weight ** (1 - strength), rel=1e-4)
    for weight in weights:
        torch.testing.assert_close((inputs / scales) @ (weight * scales).T, inputs @ weight.T, rtol=1e-4, atol=1e-3)


def test_inputs_that_do_not_come_from_a_norm_are_left_alone() -> None:
    import torch

    producer = LinearProducer(torch.arange(16), 16)
    assert torch.equal(
        SmoothQuantScaler().scales([linear(randn(8, 16), stats_of(skewed(40, 16)))], producer), torch.ones(16)
    )


def test_a_channel_that_is_never_used_keeps_its_scale() -> None:
    import torch

    inputs, weight = skewed(40, 16), randn(8, 16)
    inputs[:, 3], weight[:, 5] = 0, 0
    scales = SmoothQuantScaler().scales([linear(weight, stats_of(inputs))], NormProducer(torch.ones(16), torch.float32))
    assert scales[3] == scales[5] == 1.0


def test_with_an_outlier_channel_int8_loses_less_after_smoothing() -> None:
    import torch

    inputs, weight = randn(200, 64), randn(32, 64, seed=1)
    inputs[:, 7] *= 100
    exact = inputs @ weight.T
    scales = SmoothQuantScaler().scales([linear(weight, stats_of(inputs))], NormProducer(torch.ones(64), torch.float32))
    rounding = int8("dynamic")
    plain = per_token_int8(inputs) @ rounded(weight, rounding).T
    smooth = per_token_int8(inputs / scales) @ rounded(weight * scales, rounding).T
    assert (smooth - exact).square().sum() < 0.1 * (plain - exact).square().sum()


def test_static_scales_cover_what_was_seen() -> None:
    import torch

    inputs = skewed(40, 16)
    most = float(inputs.abs().max())
    stats = stats_of(inputs)
    assert float(input_scale(stats.max_abs, int8("static"))) == pytest.approx(most / 127.5)
    assert float(input_scale(stats.max_abs, fp8("static"))) == pytest.approx(most / 448)
    assert input_scale(stats.max_abs, fp8("static")).shape == (1,)
    smoothed = stats.scaled(torch.full((16,), 2.0))
    assert float(input_scale(smoothed.max_abs, int8("static"))) == pytest.approx(most / 255)


def test_cache_scales_put_the_largest_value_at_the_largest_fp8_number() -> None:
    import torch

    scales = Extent(key=3.5, value=0.0).scales()
    assert {name: (float(scale), tuple(scale.shape)) for name, scale in scales.items()} == {
        "k_scale": (pytest.approx(3.5 / 448), (1,)),
        "v_scale": (1.0, (1,)),
    }
    stored = (torch.tensor([3.5]) / scales["k_scale"]).to(torch.float8_e4m3fn)
    assert float(stored.float()) == 448.0
