"""Which sizes have a Hadamard matrix here: those of the models that people optimize."""

from __future__ import annotations

import pytest

from backend.domain.maths.hadamard import find_factors

HIDDEN = (576, 896, 960, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
HEADS = (64, 80, 96, 128, 256)


@pytest.mark.parametrize("size", (*HIDDEN, *HEADS))
def test_the_sizes_of_models_have_one(size: int) -> None:
    factors = find_factors(size)
    assert factors is not None and factors.base << factors.doublings == size


@pytest.mark.parametrize(
    ("size", "prime", "construction"), [(12, 11, "I"), (20, 19, "I"), (36, 17, "II"), (28, 13, "II")]
)
def test_the_construction_of_a_base(size: int, prime: int, construction: str) -> None:
    factors = find_factors(size)
    assert factors is not None and (factors.prime, factors.construction) == (prime, construction)


@pytest.mark.parametrize("size", (0, 3, 6, 92, 2 * 49))
def test_other_sizes_have_none(size: int) -> None:
    assert find_factors(size) is None
