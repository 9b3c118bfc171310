"""Rounding: within half a step, exact round trips through the stored form, whatever the weights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engines.native.methods.rounding import compress, in_groups, parameters, rounded, snapped
from tests.properties import examples
from tests.unit.engines.native.rounding_cases import a_rounding

METHODS = [("w8a8", 8, True), ("awq", 4, False), ("awq", 4, True), ("rtn", 8, False)]


def a_weight(seed: int, spread: float, kind: str) -> Any:
    """[32, 64], scaled to `spread`, with rows of the given kind."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(32, 64, generator=generator) * spread
    if kind == "zero rows":
        weight[::3] = 0
    elif kind == "constant rows":
        weight[::3] = spread
    elif kind == "one sign":
        weight = weight.abs()
    elif kind == "outlier":
        weight[:, 5] *= 1000
    return weight


weights = st.builds(
    a_weight,
    st.integers(0, 10_000),
    st.sampled_from([1e-6, 0.02, 1.0, 300.0]),
    st.sampled_from(["plain", "zero rows", "constant rows", "one sign", "outlier"]),
)


@examples(60)
@given(weight=weights, method=st.sampled_from(METHODS))
def test_a_weight_in_the_representable_range_moves_by_at_most_half_a_step(
    weight: Any, method: tuple[str, int, bool]
) -> None:
    rounding = a_rounding(*method)
    scale, zero_point = (value[..., None].float() for value in parameters(weight, rounding)[:2])
    grouped, half = in_groups(weight, rounding), 2 ** (method[1] - 1)
    inside = (grouped >= scale * (-half - zero_point)) & (grouped <= scale * (half - 1 - zero_point))
    error = (in_groups(rounded(weight, rounding), rounding) - grouped).abs()
    assert bool((error[inside] <= (scale * 0.501).expand_as(error)[inside]).all())
    # Outside lie only ends of the range: scale and zero point are themselves rounded, to 8 bits and to a whole step.
    assert bool((error <= scale * (1.1 + 2 ** (method[1] - 9))).all())


@examples(60)
@given(weight=weights, method=st.sampled_from(METHODS))
def test_what_is_stored_reads_back_as_what_was_scored(weight: Any, method: tuple[str, int, bool]) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor

    rounding = a_rounding(*method)
    tensors = compress(weight, rounding)
    assert tensors["weight_scale"].dtype == rounding.scale_dtype
    wide = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    back = BaseCompressor.get_value_from_registry(rounding.format).decompress(wide, rounding.scheme)["weight"]
    assert torch.equal(back, rounded(weight, rounding))


@examples(60)
@given(
    weight=weights, method=st.sampled_from([("int", 4, True), ("int", 4, False), ("int", 8, True), ("w8a8", 8, True)])
)
def test_rounding_in_place_is_the_librarys_bit_by_bit(weight: Any, method: tuple[str, int, bool]) -> None:
    import torch
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    rounding = a_rounding(*method)
    grid = parameters(weight, rounding)
    theirs = fake_quantize(weight, grid.scale, grid.zero_point, rounding.scheme.weights)
    assert torch.equal(snapped(weight, grid, rounding), theirs)


@pytest.mark.parametrize("method", METHODS)
def test_a_zero_weight_stays_zero(method: tuple[str, int, bool]) -> None:
    import torch

    assert not rounded(torch.zeros(8, 64), a_rounding(*method)).any()


def test_the_stored_tensors_are_those_serving_engines_read() -> None:
    import torch

    weight = torch.randn(32, 64)
    int8 = compress(weight, a_rounding("w8a8", 8, True))
    assert {name: (t.dtype, tuple(t.shape)) for name, t in int8.items()} == {
        "weight": (torch.int8, (32, 64)),
        "weight_scale": (torch.float32, (32, 1)),
    }
    int4 = compress(weight, a_rounding("awq", 4, False))
    assert {name: (t.dtype, tuple(t.shape)) for name, t in int4.items()} == {
        "weight_packed": (torch.int32, (32, 8)),
        "weight_scale": (torch.bfloat16, (32, 2)),
        "weight_shape": (torch.int64, (2,)),
        "weight_zero_point": (torch.int32, (4, 2)),
    }
    assert "weight_zero_point" not in compress(weight, a_rounding("awq", 4, True))
