"""Prices against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.domain.evaluation.prices import Pricing, blended_sagemaker_price, level_prices, price_per_million

positive = st.floats(0.01, 1e6)


def prices(pricing: Pricing | None, **changed: float | None):
    given_figures = {
        "input_tokens_per_s": 1000.0,
        "output_tokens_per_s": 250.0,
        "tpot_p50_ms": 20.0,
        "prefill_share": 0.25,
    }
    return level_prices(pricing, concurrency=8, **(given_figures | changed))


def test_a_rate_of_a_million_tokens_an_hour_costs_the_hour():
    assert price_per_million(12.0, 1_000_000 / 3600) == pytest.approx(12.0)


def test_input_and_output_each_charge_the_full_hour_and_the_total_charges_it_once():
    price_list = prices(Pricing(per_hour=3.6))
    assert price_list.per_million_input == pytest.approx(1.0)
    assert price_list.per_million_output == pytest.approx(4.0)
    assert price_list.per_million_total == pytest.approx(0.8)


def test_the_blended_price_splits_the_hour():
    # A quarter of the hour on 3.6 M input tokens: 0.25; three quarters on 0.9 M output tokens: 3.0; (3 x 0.25 + 3) / 4.
    assert prices(Pricing(per_hour=3.6)).blended == pytest.approx(0.9375)


def test_at_the_measured_ratio_the_blended_price_is_the_price_of_all_tokens():
    price_list = prices(Pricing(per_hour=3.6, input_output_ratio=4.0))
    assert price_list.blended == pytest.approx(price_list.per_million_total)


def test_without_a_split_of_the_hour_there_is_no_blended_price():
    assert prices(Pricing(per_hour=3.6), prefill_share=None).blended is None


def test_the_announcements_formula_in_its_own_numbers():
    # 8 streams at 20 ms a token: 400 tokens/s, 1.44 M an hour; 0.75 x 98.32 / 1.44 / 4.
    pricing = Pricing(per_hour=98.32, discount=0.25)
    assert prices(pricing).blended_sagemaker == pytest.approx(0.75 * 98.32 / 1.44 / 4)


def test_the_announcements_ratio_is_editable():
    assert blended_sagemaker_price(Pricing(per_hour=1.44, input_output_ratio=1.0), 8, 20.0) == pytest.approx(0.5)


def test_no_hourly_price_gives_no_prices():
    assert prices(None) is None


@pytest.mark.parametrize("absent", [None, 0.0])
def test_what_was_not_measured_has_no_price_rather_than_0(absent: float | None):
    price_list = prices(Pricing(per_hour=1), output_tokens_per_s=absent, tpot_p50_ms=absent)
    assert (price_list.per_million_output, price_list.blended, price_list.blended_sagemaker) == (None, None, None)
    assert price_list.per_million_input is not None


def test_an_uncounted_side_leaves_the_total_unknown():
    assert prices(Pricing(per_hour=1), input_tokens_per_s=None).per_million_total is None


@given(positive, positive, positive, st.floats(0.01, 0.99), st.floats(0.1, 20), st.floats(0, 0.9))
def test_a_discount_lowers_every_price_by_its_share(hour, inputs, outputs, share, ratio, discount):
    figures = {"input_tokens_per_s": inputs, "output_tokens_per_s": outputs, "prefill_share": share}
    full = prices(Pricing(per_hour=hour, input_output_ratio=ratio), **figures)
    less = prices(Pricing(per_hour=hour, input_output_ratio=ratio, discount=discount), **figures)
    for name, value in full.model_dump().items():
        assert getattr(less, name) == pytest.approx((1 - discount) * value)


@pytest.mark.parametrize(
    "wrong", [{"per_hour": -1}, {"per_hour": 1, "discount": 1}, {"per_hour": 1, "input_output_ratio": 0}]
)
def test_impossible_pricing_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        Pricing(**wrong)
