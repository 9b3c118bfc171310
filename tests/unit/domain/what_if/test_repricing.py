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


@pytest.mark.parametrize("given", [1.2, None])
def test_only_prices_move(given: float | None) -> None:
    document = evaluation(per_hour=given)
    found = repriced(document, WhatIf(per_hour=4.0, discount=0.25))
    assert (found.options.price_per_hour, found.options.discount) == (4.0, 0.25)
    level = found.variants[1].levels[2]
    assert level.price and level.price.per_million_output == pytest.approx(
        3.0 / (level.output_tokens_per_s * 3600 / 1e6)
    )
    assert _without_prices(found) == _without_prices(document)


def test_another_mix_of_tokens_moves_the_blended_prices_alone() -> None:
    document = evaluation(per_hour=1.2)
    asked = WhatIf(input_output_ratio=1.0)
    found = repriced(document, asked)
    both = [repriced(document, WhatIf(per_hour=2.4, input_output_ratio=ratio)) for ratio in (3, 1)]
    before, after = (each.variants[1].levels[2].price for each in both)
    assert before and after
    assert after.blended_sagemaker == pytest.approx(2 * (before.blended_sagemaker or 0)) and before.blended_sagemaker
    moved = {name for name in Price.model_fields if getattr(before, name) != getattr(after, name)}
    assert moved <= {"blended", "blended_sagemaker"} and _without_prices(found) == _without_prices(document)
    said = costs.hour_words(document, asked)
    assert "costs 1.2" in said and "1 input tokens per output token" in said and "used 3" in said
    assert "1 input tokens per output token" in costs.price_words(found, "blended")


def _without_prices(document: Evaluation) -> Any:
    told = document.model_dump(exclude={"options": {"price_per_hour", "discount", "input_output_ratio"}})
    for result in told["variants"]:
        for level in result["levels"]:
            del level["price"]
    return told


def test_the_reports_curves_and_table_follow_and_its_document_does_not() -> None:
    document = evaluation()
    plain, asked = (
        content(document, Extras(what_if=each)) for each in (WhatIf(), WhatIf(per_hour=2.4, price_source="a list"))
    )
    before, after = (_heights(found) for found in (plain, asked))
    assert after == pytest.approx([2 * value for value in before], rel=1e-3)
    assert asked["tables"]["price"] != plain["tables"]["price"] and asked["json_data"] == plain["json_data"]
    assert json.loads(base64.b64decode(asked["json_data"]))["options"]["price_per_hour"] == 1.2
    assert "costs 2.4 (a list)" in asked["price_basis"] and "used 1.2" in asked["price_basis"]
    assert plain["price_basis"].startswith("An hour costs 1.2. The speed")
    assert content(evaluation(per_hour=None), Extras())["price_basis"] == "No hourly price is known."


def _heights(found: dict[str, Any]) -> list[float]:
    (choice,) = found["charts"]["per_million_output"]["choices"].values()
    heights: list[float] = choice["figure"]["data"][0]["y"]
    return heights


def test_each_price_says_what_it_is() -> None:
    document = evaluation()
    said = {metric: costs.price_words(document, metric) for metric in PRICES}
    assert set(said) == set(Price.model_fields) and all(said.values())
    assert "ignores prefill and prices input at 0" in said["blended_sagemaker"]
    assert "(3 x input + output) / 4. 10% of the hour is charged to input" in said["blended"]
    bare = [level.model_copy(update={"audit": LevelAudit()}) for level in document.variants[0].levels]
    unsplit = document.model_copy(update={"variants": [document.variants[0].model_copy(update={"levels": bare})]})
    assert "not known here" in costs.price_words(unsplit, "blended")
