"""Quantized weights as blocks of a GGUF file: read back by the package gguf, they are the same numbers."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from backend.domain.errors import ImpossibleStack
from backend.engines.gguf.blocks import QuantizedMatrix, block_kind, difference, pack


def matrix(least: int, most: int, *, group: int = 32, seed: int = 0) -> QuantizedMatrix:
    """Make whole numbers in that range [8, 128] times a scale for each group, the outermost ones in the first row."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(least, most + 1, (8, 128), generator=draw).float()
    numbers[0, 0], numbers[0, 1] = least, most
    scales = (torch.rand(8, 128 // group, generator=draw) / 100 + 1e-3).to(torch.bfloat16).float()
    scales[3, 0] = 0.0
    return QuantizedMatrix(numbers * scales.repeat_interleave(group, 1), scales.repeat_interleave(group // 32, 1))


@pytest.mark.parametrize(
    ("least", "most", "group", "kind"),
    [(-8, 7, 32, "Q4_0"), (-12, 3, 32, "Q4_1"), (0, 15, 64, "Q4_1"), (-128, 127, 32, "Q8_0"), (-127, 127, 128, "Q8_0")],
)
def test_blocks_hold_the_same_numbers(least: int, most: int, group: int, kind: str) -> None:
    weights = matrix(least, most, group=group)
    assert block_kind(weights) == kind
    stored = dequantize(pack(weights, kind), GGMLQuantizationType[kind])
    assert difference(weights, stored) <= 1
    if kind != "Q4_1":  # scales of 8 bits are 16-bit floats too
        assert torch.equal(torch.from_numpy(stored), weights.weights)


def test_another_number_is_a_difference() -> None:
    weights = matrix(-8, 7)
    packed = pack(weights, "Q4_0")
    packed[5, 2] ^= 1
    assert difference(weights, dequantize(packed, GGMLQuantizationType.Q4_0)) > 1


def test_numbers_of_more_than_8_bits_are_refused() -> None:
    with pytest.raises(ImpossibleStack, match="more than 8 bits"):
        block_kind(matrix(-300, 300))
