"""A payoff map as a chart and in words: what pays, where, and how sure that is."""

from __future__ import annotations

import plotly.graph_objects as graph
import pytest

from backend.domain.figures import counted
from backend.domain.planner.draft_payoff import DraftShape, StepCosts
from backend.domain.planner.roofline import tokens_per_pass
from backend.present.charts import alt_text
from backend.present.charts.drafts import payoff as chart
from backend.present.charts.theme import Theme
from backend.present.words import payoff_map as words
from tests.payoffs import COSTS, SMALL, payoff_map

HUGE = DraftShape(parameters=10**9, layers=30)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_map_is_one_that_plotly_accepts_with_a_panel_for_each_number_of_streams(theme: Theme) -> None:
    map_document = payoff_map()
    drawn = chart.payoff_map(map_document, SMALL, theme)
    graph.Figure(drawn["data"], drawn["layout"])
    cells = [trace for trace in drawn["data"] if trace["type"] == "heatmap"]
    assert [trace["name"] for trace in cells] == ["1 stream", "4 streams", "8 streams", "16 streams"]
    assert cells[1]["customdata"][2][10] == map_document.gain(4, 3, SMALL, 0.5) and cells[1]["x"][10] == 0.5
    for trace in cells:
        axes = (
            drawn["layout"][f"x{'axis' + trace['xaxis'][1:]}"]["domain"],
            drawn["layout"][f"yaxis{trace['yaxis'][1:]}"]["domain"],
        )
        assert all(0 <= low < high <= 1 for low, high in axes)


def test_the_line_breaks_even_and_its_points_are_the_charts_rows() -> None:
    map_document = payoff_map()
    drawn = chart.payoff_map(map_document, SMALL)
    line = next(trace for trace in drawn["data"] if trace["type"] == "scatter")
    assert line["y"][0] == 1 and map_document.gain(1, 1, SMALL, line["x"][0]) == pytest.approx(1)
    rows = alt_text.rows(drawn)
    assert rows[0]["Series"] == "break-even at 1 stream" and {"Acceptance", "Draft tokens"} <= set(rows[0])
    assert "break-even at 16 streams" in alt_text.alt(drawn)


def test_a_draft_that_cannot_pay_has_no_line_and_the_words_say_so() -> None:
    map_document = payoff_map()
    drawn = chart.payoff_map(map_document, HUGE)
    graph.Figure(drawn["data"], drawn["layout"])
    assert not any(trace["x"] for trace in drawn["data"] if trace["type"] == "scatter")
    assert (
        words.answer(map_document, HUGE, 4)
        == "At 4 streams it cannot pay: even a draft that is always right would be slower than none."
    )
    assert "No draft above 20.5 million was measured" in words.sureness(map_document, HUGE)


def test_one_number_of_streams_makes_one_panel() -> None:
    one = payoff_map(costs=StepCosts(base=COSTS.base[:1], coefficients=COSTS.coefficients))
    drawn = chart.payoff_map(one, SMALL)
    graph.Figure(drawn["data"], drawn["layout"])
    assert sum(trace["type"] == "heatmap" for trace in drawn["data"]) == 1


def test_the_answer_has_acceptance_interval_and_guess() -> None:
    result, least = payoff_map(), payoff_map().break_even(1, SMALL)
    assert least is not None and least.interval is not None and least.interval[1] is not None
    answer = words.answer(result, SMALL, 1)
    assert answer == (
        f"At 1 stream it pays if at least {least.acceptance:.0%} of draft tokens are accepted "
        f"(95% {least.interval[0]:.0%} to {least.interval[1]:.0%}), with {counted(least.tokens, 'draft token')}."
    )
    assert words.subject(result, SMALL) == "A draft of 5.0 million parameters for smollm"
    assert words.sureness(result, SMALL).startswith("Each of 6 servers was predicted from the others")
    assert "Too few servers" in words.sureness(payoff_map(error=None), SMALL)
    assert words.provenance(result) == "Measured 2026-11-23 on a processor, 2 cores, vLLM 0.32.0, in 11 min."


def test_a_draft_that_was_measured_lies_on_the_map_and_is_said_to_pay_or_not() -> None:
    lengths = (1.8, 2.4)
    drawn = chart.payoff_map(payoff_map(), SMALL, lengths=lengths)
    graph.Figure(drawn["data"], drawn["layout"])
    own = [trace for trace in drawn["data"] if trace["name"] == chart.OWN]
    assert [trace["y"] for trace in own] == [[1, 2]] * 4
    assert [tokens_per_pass(a, k) for a, k in zip(own[0]["x"], (1, 2), strict=True)] == pytest.approx(lengths)
    assert words.measured(lengths) == (
        "On held-out answers this draft gave 1.80 and 2.40 tokens per step with 1 and 2 draft tokens:"
    )


@pytest.mark.parametrize(
    ("gain", "message"),
    [(1.2, "pays: 1.20x (95% 1.11"), (1.05, "may pay"), (0.97, "will hardly pay"), (0.8, "does not pay: 0.8")],
)
def test_what_is_said_hangs_on_the_interval(gain: float, message: str) -> None:
    map_document = payoff_map()
    length = gain / map_document.gain_at(4, 1, SMALL, 1.0)
    assert words.prediction(map_document, SMALL, (length,), 4).startswith(f"At 4 streams it {message}")
