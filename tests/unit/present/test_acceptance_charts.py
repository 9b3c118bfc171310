"""Speculation of an evaluation in charts and words."""

from __future__ import annotations

import plotly.graph_objects
import pytest

from backend.domain.evaluation.evidence.speculation_gains import (
    PredictedGain,
    drafted_levels,
    drafted_loads,
    measured_gains,
)
from backend.present.charts import alt_text
from backend.present.speculation import acceptance, words
from tests import simulated
from tests.helpers.speculating_evaluation import LOSSLESS, document


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_one_that_plotly_takes_and_has_words(theme: str) -> None:
    evaluation = document()
    load = drafted_loads(evaluation)[0]
    for figure in (
        acceptance.gain(evaluation, theme),
        *(draw(evaluation, load, theme) for draw in (acceptance.by_position, acceptance.lengths, acceptance.by_kind)),
    ):
        plotly.graph_objects.Figure(figure["data"], figure["layout"])
        assert alt_text.alt(figure).endswith(".")
        assert alt_text.csv(figure)


def test_what_acceptance_allows_stands_beside_what_it_gave() -> None:
    evaluation = document()
    rows = measured_gains(evaluation)
    assert [row.drafted.level.concurrency for row in rows] == [1, 4]
    assert rows[0].allowed == pytest.approx(2600 / 1100)
    assert rows[0].measured == pytest.approx(1.4, rel=0.1)
    assert rows[0].interval is not None
    marks = {("draft", rows[0].drafted.level.load.key): PredictedGain(1.6, (1.5, 1.7))}
    drawn = acceptance.gain(evaluation, predicted=marks)
    (mark,) = [trace for trace in drawn["data"] if trace["name"] == "predicted by the payoff map"]
    assert mark["y"] == [1.6] and mark["error_y"]["array"] == pytest.approx([0.1])
    alone = evaluation.model_copy(update={"variants": evaluation.variants[1:], "comparison": []})
    assert "without speculation was not measured" in alt_text.alt(acceptance.gain(alone))


def test_what_was_accepted_and_whether_answers_stayed_is_said() -> None:
    row = words.rows(document())[0]
    assert (row["Accepted by position"], row["Tokens accepted"]) == ("80%, 50%, 20%", "1,500 of 3,000")
    assert row["Tokens per step by kind"] == "code 2.60, writing 1.50"
    (remaining,) = words.lossless_rows(document())
    assert remaining["Answers"] == "no difference found"
    assert remaining["Greedy"].startswith(
        "23 of 24 the same, first differing at token 17; without speculation 22 of 24 with 8 "
    )
    assert "a total-variation distance of 13% would be detected with 80% power" in remaining["Sampled"]
    assert words.verdict(None) == words.NOT_MEASURED
    assert words.verdict(LOSSLESS.model_copy(update={"drafted": 0, "sampled_drafted": 0})) == words.NOTHING_DRAFTED


def test_nothing_is_drawn_of_variants_that_do_not_guess() -> None:
    evaluation = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.2))
    assert drafted_levels(evaluation) == [] and words.lossless_rows(evaluation) == []
