"""A level has one throughput on every screen, in every table and in the report: the one that verdicts compare."""

from __future__ import annotations

from statistics import geometric_mean

import pytest

from backend.domain.evaluation.document import Level
from backend.domain.what_if.slice_means import with_slice_means
from tests.simulated import evaluation


def _mean(level: Level) -> float:
    return geometric_mean([block["output_tokens_per_s"] for block in level.blocks])


def test_rates_are_means_over_slices_and_prices_follow() -> None:
    stored = evaluation(names=("original", "a"), speeds=(1.0, 1.3), levels=(1, 8), noise=0.5)
    shown = with_slice_means(stored)
    for before, after in zip(stored.variants, shown.variants, strict=True):
        for raw, level in zip(before.levels, after.levels, strict=True):
            assert level.output_tokens_per_s == pytest.approx(_mean(raw))
            assert level.output_tokens_per_s != raw.output_tokens_per_s
            assert level.price and level.output_tokens_per_s
            assert level.price.per_million_output == pytest.approx(1.2 / (level.output_tokens_per_s * 3600 / 1e6))
    assert with_slice_means(shown) == shown


def test_a_level_with_a_slice_without_a_rate_stays_as_it_was_measured() -> None:
    stored = evaluation(names=("original",), speeds=(1.0,), levels=(1,), per_hour=None)
    (level,) = stored.variants[0].levels
    cut = level.model_copy(update={"blocks": [*level.blocks, {"duration_s": 1.0}]})
    result = stored.variants[0].model_copy(update={"levels": [cut]})
    assert with_slice_means(stored.model_copy(update={"variants": [result]})).variants[0].levels == [cut]
