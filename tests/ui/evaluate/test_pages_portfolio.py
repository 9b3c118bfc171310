"""Which variant to serve at which load: on the evaluation's page under the planned load, and on the command line."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from backend.cli.main import app
from backend.service import Workspace
from tests import studio
from tests.helpers.crossing_evaluation import crossing


def test_the_page_says_what_to_serve_at_which_load(studio_home: Workspace) -> None:
    evaluation = studio.evaluation(studio_home, crossing())
    page_text = studio.says(studio.open_page("evaluate", id=evaluation)).replace("\\", "")
    assert "Serve low at 1 to 2 streams and high at 4 to 8 streams." in page_text.replace("`", "")
    assert "Switch to high at 4 requests in flight, and back to low at 2." in page_text.replace("`", "")
    # The planned load's limits hold.
    limited = studio.says(studio.open_page("evaluate", id=evaluation, slo_ttft="150")).replace("\\", "")
    assert "No variant is within your limits at 8 streams." in limited


def test_variants_over_the_quality_floor_of_the_load_are_named(studio_home: Workspace) -> None:
    evaluation = studio.evaluation(studio_home, crossing())
    page_text = (
        studio.says(studio.open_page("evaluate", id=evaluation, load_kl="0.0001")).replace("\\", "").replace("`", "")
    )
    assert "Above your quality floor (KL divergence at most 0.0001): low (0.0004), slow (0.0004)." in page_text
    assert "low is left out: its KL divergence is 0.0004, over 0.0001." in page_text


def test_prices_begin_with_the_limits_of_the_load_and_count_machines(studio_home: Workspace) -> None:
    evaluation = studio.evaluation(studio_home, crossing())
    query = {"id": evaluation, "evaluate_view": "Price"}
    assert "Set requests per second under Your load" in studio.says(studio.open_page("evaluate", **query))
    at = studio.open_page("evaluate", **query, load_rate="50", slo_ttft="150")
    assert at.number_input(key="evaluate_cost_ttft").value == 150.0
    (table,) = [frame.value for frame in at.dataframe if "Machines" in frame.value.columns]
    assert all(table["Machines"] >= table["Without headroom"]) and len(table) >= 1


def test_the_command_prints_the_same_and_refuses_one_level(studio_home: Workspace) -> None:
    evaluation = studio.evaluation(studio_home, crossing(), "e-1")
    runner = CliRunner()
    text = runner.invoke(app, ["portfolio", evaluation]).output
    assert "Serve low at 1 to 2 streams and high at 4 to 8 streams." in text
    document = json.loads(runner.invoke(app, ["portfolio", evaluation, "--json"]).output)
    assert document["switches"] == [{"below": "low", "above": "high", "down": 2, "up": 4}]
    single = studio.evaluation(studio_home, crossing(levels=(4,)), "e-2")
    refusal = runner.invoke(app, ["portfolio", single])
    assert "Measure at two or more numbers of streams" in str(refusal.exception)


def test_the_command_sizes_a_fleet_and_names_limits_that_nobody_meets(studio_home: Workspace) -> None:
    evaluation = studio.evaluation(studio_home, crossing())
    runner = CliRunner()
    text = runner.invoke(app, ["fleet", evaluation, "--rate", "50", "--price-per-hour", "2"]).output
    assert "50 requests/s take " in text and "; 20% of each is kept free for bursts." in text
    refusal = runner.invoke(app, ["fleet", evaluation, "--rate", "50", "--ttft", "0.1"])
    assert "No variant of e-1 meets these limits at any measured load" in str(refusal.exception)


def test_the_limits_of_the_command_are_for_the_percentile_that_was_chosen(studio_home: Workspace) -> None:
    document = crossing()
    evaluation, runner = studio.evaluation(studio_home, document), CliRunner()
    lowest_p99 = min(level.ttft_ms.p99 for result in document.variants for level in result.levels if level.ttft_ms)
    sized = ["fleet", evaluation, "--rate", "50", "--ttft", f"{0.999 * lowest_p99:.3f}"]
    assert "50 requests/s take " in runner.invoke(app, [*sized, "--percentile", "p50"]).output
    assert "meets these limits" in str(runner.invoke(app, [*sized, "--percentile", "p99"]).exception)
    unknown = runner.invoke(app, ["portfolio", evaluation, "--percentile", "p42"])
    assert "--percentile is one of p50, p90, p95, p99" in str(unknown.exception)
