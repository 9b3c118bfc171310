"""Home: the latest win as a hero, in one line and four figures; where nothing wins one line with the reason; no wall of
words."""

from __future__ import annotations

import json
import re

from backend.service import Workspace
from tests import simulated, studio
from tests.helpers.noisy_evaluation import noisy


def test_the_latest_win_is_a_line_four_tiles_and_one_chart(studio_home: Workspace) -> None:
    studio.evaluation(studio_home, simulated.evaluation(), "e-won")
    studio.evaluation(studio_home, noisy(), "e-noisy")
    at = studio.open_page("home")
    (line,) = [head.value for head in at.subheader if "faster" in head.value]
    title = r"\*\*w8a8-draft\*\* is 2\.\dx faster than \*\*original\*\* at 1 stream"
    assert re.fullmatch(title, line), "the tiles say the rest"
    assert [metric.label.partition(",")[0] for metric in at.metric] == ["Speed", "Size", "Price per token", "Quality"]
    (chart,) = at.get("plotly_chart")
    drawn = json.loads(chart.proto.spec)["data"]
    names = ["Pareto front", "2 others", "original", "w8a8-draft", "whiskers: 95% interval"]
    assert [trace["name"] for trace in drawn] == names
    assert drawn[2]["marker"]["color"] and drawn[2]["marker"]["symbol"][0] == "circle"
    assert studio.says(at).count("streams") < 8, "no sentence a variant and level"
    assert "Running" not in [head.value for head in at.subheader], "nothing runs"
    at.button(key="home_optimize").click().run()
    studio.check(at)
    assert at.title[0].value == "Build"


def test_where_nothing_wins_one_line_says_why_and_what_to_try(studio_home: Workspace) -> None:
    studio.evaluation(studio_home, noisy())
    at = studio.open_page("home")
    assert "too noisy to tell" in at.warning[-1].value and "more blocks" in at.warning[-1].value
    assert [tile.label for tile in at.metric] == ["original", "a"] and len(at.get("plotly_chart")) == 1
    assert any("more block" in button.label for button in at.button)


def test_an_empty_home_says_what_will_stand_there(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("home"))
    assert "searched for a win" not in text, "a bare string of a page is drawn"
    assert "No verdict yet." in text and "Three ways to start" in text
