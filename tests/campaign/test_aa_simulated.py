"""A/A: how often is a difference named where there is none? A thousand simulated evaluations."""

from __future__ import annotations

import pytest
from scipy import stats

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import Comparison
from tests.simulated import aa_results, level, result


@pytest.mark.campaign
@pytest.mark.parametrize("variants", [2, 4])
def test_a_model_against_itself_differs_in_at_most_five_percent_of_a_thousand(
    variants: int,
) -> None:
    """Holm holds the rate to 5% whatever the metrics' dependence; 1000 draws of 5% exceed the bound once in 1000."""
    false = sum(_names_a_difference(compare(aa_results(seed, variants))) for seed in range(1000))
    assert false <= stats.binom.ppf(0.999, 1000, 0.05)


@pytest.mark.campaign
@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_ended_by_the_rule_they_name_one_in_at_most_five_percent_too(noise: float) -> None:
    """The functions that a worker calls at each look; `test_stopping_rule` has thousands in numpy."""
    named = sum(_names_a_difference(ended_by_the_rule(seed, noise)) for seed in range(500))
    assert named <= stats.binom.ppf(0.999, 500, 0.05)


def _names_a_difference(comparison: list[Comparison]) -> bool:
    """Tell whether a primary figure, which alone is corrected, is called faster or slower."""
    return any(row.significant for row in comparison if not row.secondary)


def ended_by_the_rule(seed: int, noise: float, most: int = 12) -> list[Comparison]:
    """What the last look at two variants that are the same says, at two levels."""
    levels = [[level(c, repeats=most, noise=noise, seed=2 * seed + which) for c in (1, 4)] for which in range(2)]
    results: list[Comparison] = []
    for place, alpha in zip(stopping_rule.blocks_of_tests(most), stopping_rule.significance_levels(most), strict=True):
        observed = [[each.model_copy(update={"blocks": each.blocks[:place]}) for each in own] for own in levels]
        results = compare([result(f"same-{which}", own) for which, own in enumerate(observed)], alpha)
        if not stopping_rule.find_undecided(results):
            break
    return results
