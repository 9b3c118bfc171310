"""Quality, speed and price of all variants in one chart: whatever levels each of them has."""

from __future__ import annotations

import pytest

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.load.load import Load
from backend.present.charts import alt_text, tradeoffs
from tests.simulated import evaluation, level, price, quality, result

KL = (0.0, 0.0004, 0.002)


def evaluation_of(*levels: list[Level]) -> Evaluation:
    """One variant for each list of levels, all with a quality."""
    results = [
        result(name, [price(each, 1.2) for each in own], quality(kl))
        for name, own, kl in zip("abc", levels, KL, strict=False)
    ]
    return evaluation().model_copy(update={"variants": results})


def at_rate(rate: float, under_way: int) -> Level:
    return level(under_way, load=Load("rate", rate))


def series(document: Evaluation, load: Load | None = None) -> list[str]:
    return [str(row["Series"]) for row in alt_text.rows(tradeoffs.quality_speed(document, load))]


def test_a_variant_cut_short_is_drawn_at_the_highest_load_that_all_have() -> None:
    cut = evaluation_of([level(1), level(4), level(16)], [level(1), level(4)])
    figure = tradeoffs.quality_speed(cut)
    assert figure["layout"]["title"]["text"] == "Quality against speed at 4 streams"
    assert [trace["y"][0] for trace in figure["data"] if "marker" in trace] == [
        each.levels[1].output_tokens_per_s for each in cut.variants
    ]
    assert figure["layout"]["annotations"] == []


def test_beside_a_chart_that_names_the_variants_it_has_neither_legend_nor_prices() -> None:
    priced = evaluation_of([level(1)], [level(1)])
    whole, brief = tradeoffs.quality_speed(priced), tradeoffs.quality_speed(priced, brief=True)
    assert whole["data"][0]["mode"] == "markers+text" and whole["layout"]["showlegend"]
    assert brief["data"][0]["mode"] == "markers" and not brief["layout"]["showlegend"]
    assert brief["data"][0]["hovertext"] == whole["data"][0]["hovertext"]


def test_at_a_rate_each_variant_has_its_own_number_under_way_and_all_are_drawn() -> None:
    clocked = evaluation_of([at_rate(2, 1), at_rate(8, 9)], [at_rate(2, 3), at_rate(8, 30)])
    figure = tradeoffs.quality_speed(clocked)
    assert series(clocked) == ["a", "b"]
    assert "at 8 requests/s" in figure["layout"]["title"]["text"]
    assert "9 requests/s" not in alt_text.alt(figure)


def test_loads_are_ordered_by_their_number_not_by_their_words() -> None:
    clocked = evaluation_of(*([at_rate(rate, 1) for rate in (2, 10, 9)] for _ in range(2)))
    assert "at 10 requests/s" in tradeoffs.quality_speed(clocked)["layout"]["title"]["text"]


def test_where_no_load_is_shared_each_is_drawn_at_its_own_highest_and_says_which() -> None:
    searched = evaluation_of([level(1), level(2)], [level(8), level(6)], [level(4)])
    figure = tradeoffs.quality_speed(searched)
    assert series(searched) == ["a, 2 streams", "b, 8 streams", "c, 4 streams"]
    assert "each at its highest load" in alt_text.alt(figure)
    messages = [trace["text"][0].partition(", ")[0] for trace in figure["data"] if "text" in trace]
    assert messages == [
        "2 streams",
        "8 streams",
        "4 streams",
    ]
    prices = [row["Load and price per million output tokens (USD)"] for row in alt_text.rows(figure)]
    assert all(len(str(each).split(", ")) == 2 for each in prices)


def test_a_variant_without_a_level_takes_no_load_from_the_others() -> None:
    died = evaluation_of([level(1), level(4)], [level(1), level(4)], [])
    assert series(died) == ["a", "b"]
    assert alt_text.alt(tradeoffs.quality_speed(died)).endswith("; Not measured at this load: c.")


@pytest.mark.parametrize("kl", [None, 0.0004])
def test_quality_not_measured_and_not_measured_at_this_load_are_two_things(kl: float | None) -> None:
    cut = evaluation_of([level(1), level(4)], [level(1)])
    if kl is None:
        cut = cut.model_copy(
            update={"variants": [cut.variants[0], cut.variants[1].model_copy(update={"quality": None})]}
        )
    message = alt_text.alt(tradeoffs.quality_speed(cut, Load("closed", 4)))
    assert message.endswith("; Not measured at this load: b." if kl else "; Quality not measured: b.")
    nowhere = alt_text.alt(tradeoffs.quality_speed(cut, Load("closed", 99)))
    assert nowhere.endswith(
        "Not measured at this load: a, b." if kl else "Not measured at this load: a; Quality not measured: b."
    )
