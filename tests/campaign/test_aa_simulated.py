"""A/A: how often is a difference named where there is none? A thousand simulated evaluations."""

from __future__ import annotations

import pytest
from scipy import stats

from backend.domain.evaluation.comparison import compare
from tests.simulated import aa_results


@pytest.mark.campaign
@pytest.mark.parametrize("variants", [2, 4])
def test_a_thousand_evaluations_of_a_model_against_itself_name_a_difference_in_at_most_five_percent(variants: int) -> None:
    """Holm holds the rate to 5% whatever the metrics' dependence; 1000 draws of 5% exceed the bound once in 1000."""
    false = sum(any(row.significant for row in compare(aa_results(seed, variants))) for seed in range(1000))
    assert false <= stats.binom.ppf(0.999, 1000, 0.05)
