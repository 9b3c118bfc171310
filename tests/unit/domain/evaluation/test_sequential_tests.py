"""Blocks of several starts of the servers: whether a start has a part of its own in them, and the level of the next
test."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from backend.domain.evaluation.blocks.sequential_tests import SequentialTest, next_continuation, significance_level
from backend.domain.evaluation.blocks.session_drift import drift_warning, welch_p_value
from backend.domain.evaluation.comparison import compare, log_ratios
from backend.domain.evaluation.document import VariantResult
from tests.simulated import level as simulated
from tests.simulated import result


def of_two_starts(shift: float, seed: int) -> list[VariantResult]:
    """Twelve blocks, the last six of servers started anew, whose variant is `shift` faster from then on."""
    rng = random.Random(seed)
    rows = [math.exp(rng.gauss(shift * (block >= 6), 0.02)) for block in range(12)]
    one = simulated(4).model_copy(update={"blocks": [{"output_tokens_per_s": 100.0} for _ in rows]})
    other = one.model_copy(update={"blocks": [{"output_tokens_per_s": 100 * row} for row in rows]})
    return [result("original", [one]), result("w8a8", [other])]


def test_a_start_that_has_a_part_of_its_own_in_the_ratios_is_said() -> None:
    results = of_two_starts(0.2, seed=1)
    warning = drift_warning(results, compare(results), (6, 6))
    assert (
        warning is not None
        and "blocks after the first 6 were measured later" in warning
        and "`w8a8`, output_tokens_per_s at 4 streams" in warning
    )
    assert drift_warning(results, compare(results), (12,)) is None, "one start has nothing to differ from"


def test_blocks_that_are_left_out_do_not_move_those_of_a_later_start() -> None:
    results = []
    for whole in of_two_starts(1.0, seed=1):
        level = whole.levels[0]
        audit = level.audit.model_copy(update={"late_blocks": (2,)})
        level = level.model_copy(update={"blocks": [*level.blocks[:2], *level.blocks[3:]], "audit": audit})
        results.append(whole.model_copy(update={"levels": [level]}))
    earlier = math.exp(sum(log_ratios(results, compare(results)[-1])[:5]) / 5)
    warning = drift_warning(results, compare(results), (6, 6))
    assert warning is not None and f"{earlier:.3f} before" in warning and earlier < 1.05


def test_starts_that_are_alike_are_called_different_in_about_five_percent() -> None:
    created = [of_two_starts(0.0, seed) for seed in range(400)]
    false = sum(drift_warning(results, compare(results), (6, 6)) is not None for results in created)
    assert stats.binom.ppf(0.0005, 400, 0.05) <= false <= stats.binom.ppf(0.9995, 400, 0.05)


def test_the_difference_of_two_starts_is_tested_as_by_welch() -> None:
    first, second = [0.1, 0.2, 0.15, 0.22], [0.3, 0.31, 0.2]
    assert welch_p_value(first, second) == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
    assert welch_p_value([0.1], [0.2, 0.3]) == 1.0
    assert welch_p_value([0.1, 0.1], [0.1, 0.1]) == 1.0 and welch_p_value([0.1, 0.1], [0.2, 0.2]) == 0.0


def test_all_continuations_together_come_to_another_five_percent_at_most() -> None:
    styles: tuple[SequentialTest, ...] = ()
    for number in range(20):
        assert next_continuation(styles) == number
        styles = (*styles, SequentialTest(blocks=5 + number, alpha=significance_level(number), continuation=number))
    assert styles[0].alpha == 0.05, "the first test pays for nothing"
    assert 0.0499 < sum(check.alpha for check in styles[1:]) < 0.05


def test_an_interval_at_a_lower_level_is_wider_and_still_agrees_with_its_verdict() -> None:
    for seed in range(60):
        results = of_two_starts(0.03, seed)
        plain, paid = compare(results)[-1], compare(results, 0.0125)[-1]
        assert plain.ci95 and paid.ci95 and paid.ci95[0] < plain.ci95[0] and paid.ci95[1] > plain.ci95[1]
        assert paid.significant == (not paid.ci95[0] <= 1 <= paid.ci95[1])
        assert len(log_ratios(results, paid)) == 12
