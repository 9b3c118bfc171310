"""A price chosen afterwards moves every price and nothing else, on charts, in tables and in the report."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from backend.domain.evaluation.document import Evaluation, Price
from backend.domain.load.records import LevelAudit
from backend.domain.what_if.costs import WhatIf, repriced
from backend.evaluate.report.content import content
from backend.present.charts.evaluation import PRICES
from backend.present.report_content import Extras
from backend.present.words import costs
from tests.simulated import evaluation


def test_nothing_chosen_is_the_very_same_document() -> None:
    document = evaluation()
    assert repriced(document, WhatIf()) is document
    assert repriced(document, WhatIf(per_hour=1.2, requests_a_month=10)) is document
    unpriced = evaluation(per_hour=None)
    assert repriced(unpriced, WhatIf(discount=0.5)) is unpriced


@pytest.mark.parametrize("value", [1.2, None])
def test_only_prices_move(value: float | None) -> None:
    document = evaluation(per_hour=value)
    new_prices = repriced(document, WhatIf(per_hour=4.0, discount=0.25))
    assert (new_prices.options.price_per_hour, new_prices.options.discount) == (4.0, 0.25)
    level = new_prices.variants[1].levels[2]
    assert level.price and level.price.per_million_output == pytest.approx(
        3.0 / (level.output_tokens_per_s * 3600 / 1e6)
    )
    assert _without_prices(new_prices) == _without_prices(document)


def test_another_mix_of_tokens_moves_the_blended_prices_alone() -> None:
    document = evaluation(per_hour=1.2)
    what_if = WhatIf(input_output_ratio=1.0)
    new_prices = repriced(document, what_if)
    both = [repriced(document, WhatIf(per_hour=2.4, input_output_ratio=ratio)) for ratio in (3, 1)]
    before, after = (each.variants[1].levels[2].price for each in both)
    assert before and after
    assert after.blended_sagemaker == pytest.approx(2 * (before.blended_sagemaker or 0)) and before.blended_sagemaker
    moved = {name for name in Price.model_fields if getattr(before, name) != getattr(after, name)}
    assert moved <= {"blended", "blended_sagemaker"} and _without_prices(new_prices) == _without_prices(document)
    hour_words = costs.hour_words(document, what_if)
    assert "costs 1.2" in hour_words and "1 input tokens per output token" in hour_words and "used 3" in hour_words
    assert "1 input tokens per output token" in costs.price_words(new_prices, "blended")


def _without_prices(document: Evaluation) -> Any:
    reported = document.model_dump(exclude={"options": {"price_per_hour", "discount", "input_output_ratio"}})
    for result in reported["variants"]:
        for level in result["levels"]:
            del level["price"]
    return reported


def test_the_reports_curves_and_table_follow_and_its_document_does_not() -> None:
    document = evaluation()
    plain, request = (
        content(document, Extras(what_if=each)) for each in (WhatIf(), WhatIf(per_hour=2.4, price_source="a list"))
    )
    before, after = (_heights(result) for result in (plain, request))
    assert after == pytest.approx([2 * value for value in before], rel=1e-3)
    assert request["tables"]["price"] != plain["tables"]["price"] and request["json_data"] == plain["json_data"]
    assert json.loads(base64.b64decode(request["json_data"]))["options"]["price_per_hour"] == 1.2
    assert "costs 2.4 USD (a list)" in request["price_basis"] and "used 1.2 USD" in request["price_basis"]
    assert plain["price_basis"].startswith("An hour costs 1.2 USD. The speed")
    assert content(evaluation(per_hour=None), Extras())["price_basis"] == "No hourly price is known."


def _heights(values: dict[str, Any]) -> list[float]:
    (choice,) = values["charts"]["per_million_output"]["choices"].values()
    heights: list[float] = choice["figure"]["data"][0]["y"]
    return heights


def test_each_price_says_what_it_is() -> None:
    document = evaluation()
    by_name = {metric: costs.price_words(document, metric) for metric in PRICES}
    assert set(by_name) == set(Price.model_fields) and all(by_name.values())
    assert "ignores prefill and prices input at 0" in by_name["blended_sagemaker"]
    assert "(3 x input + output) / 4. 10% of the hour is charged to input" in by_name["blended"]
    bare = [level.model_copy(update={"audit": LevelAudit()}) for level in document.variants[0].levels]
    unsplit = document.model_copy(update={"variants": [document.variants[0].model_copy(update={"levels": bare})]})
    assert "not known here" in costs.price_words(unsplit, "blended")
