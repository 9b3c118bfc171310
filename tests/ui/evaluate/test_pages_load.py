"""How a server is loaded, chosen on the Evaluate page: every way the command line has, as a command, and bad input
told."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.evaluate import load_fields
from backend.cli.main import app
from backend.present import evaluate_command as evaluate_command
from backend.present.charts.prompt_lengths import histogram
from backend.service import Workspace
from backend.service.evaluations import evaluations, workloads
from backend.service.jobs import jobs
from tests import studio
from tests.cases import workloads as cases

URL = "http://127.0.0.1:1"
TRACE = b'{"prompt": "a", "timestamp": 0.5}\n{"prompt": "b", "timestamp": 1}\n'
FORMS = {
    "streams": {
        "evaluate_concurrency": "1, 8",
        "evaluate_repeats": "3",
        "evaluate_warmup_requests": "1",
        "evaluate_temperature": "0.7",
        "evaluate_price": "1.2345",
        "evaluate_discount": "20.0",
    },
    "until decided": {"evaluate_until_decided": "true", "evaluate_max_blocks": "12"},
    "rate": {
        "evaluate_load": "Rate",
        "evaluate_rate": "2, 0.125",
        "evaluate_arrivals": "at random moments",
        "evaluate_warmup_seconds": "1.5",
        "evaluate_connections": "64",
    },
    "ramp": {
        "evaluate_load": "Ramp",
        "evaluate_ramp_from": "0.0",
        "evaluate_ramp_to": "12.5",
        "evaluate_ramp_seconds": "20.0",
        "evaluate_arrivals": "at random moments",
    },
    "search": {
        "evaluate_load": "Search",
        "evaluate_search_from": "2.0",
        "evaluate_search_to": "64.0",
        "evaluate_search_ttft": "300.0",
        "evaluate_search_latency": "1500.0",
    },
    "search, rate": {
        "evaluate_load": "Search",
        "evaluate_search_over": "requests a second",
        "evaluate_search_from": "0.5",
        "evaluate_search_share": "99",
        "evaluate_search_tpot": "80.5",
    },
    "trace": {"evaluate_load": "Trace", "workload": "trace", "evaluate_prefix_cache": "per-run"},
    "chat": {
        "workload": "chat",
        "evaluate_seed": "7",
        "evaluate_endpoint": "chat",
        "evaluate_stream": "false",
        "evaluate_quality": "false",
        "evaluate_seconds": "30.0",
        "evaluate_timeout_s": "60.0",
        "evaluate_input_output_ratio": "4.0",
        "evaluate_interleave": "restart",
        "evaluate_max_tokens": "100",
        "evaluate_requests": "40",
    },
}


def spec_of_the_newest(home: Workspace) -> object:
    return jobs.specification(home, jobs.listing(home)[0].id)


def opened(home: Workspace, query: dict[str, str]) -> AppTest:
    """The form, with a trace in the home."""
    saved = workloads.save(home, "trace.jsonl", TRACE)
    chosen = {name: saved if (name, value) == ("workload", "trace") else value for name, value in query.items()}
    return studio.open_page("evaluate", variants=URL, **chosen)


@pytest.mark.parametrize("query", FORMS.values(), ids=FORMS)
def test_the_command_beside_the_form_asks_the_very_same(studio_home: Workspace, query: dict[str, str]) -> None:
    at = opened(studio_home, query)
    assert not at.error, [error.value for error in at.error]
    assert at.radio(key="evaluate_load").value == query.get("evaluate_load", "Streams")
    (command,) = [code.value for code in at.code if code.value.startswith("whetstone evaluate")]
    at.button(key="evaluate_submit").click().run()
    clicked = spec_of_the_newest(studio_home)
    ran = CliRunner().invoke(app, [*shlex.split(command)[1:], "--detach"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert jobs.count(studio_home) == 2
    assert spec_of_the_newest(studio_home) == clicked


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"evaluate_load": "Search"}, "A search needs at least one limit"),
        (
            {"evaluate_load": "Search", "evaluate_search_ttft": "300.0", "evaluate_search_from": "1.5"},
            "search from 2 instead of 1.5",
        ),
        (
            {
                "evaluate_load": "Search",
                "evaluate_search_ttft": "300.0",
                "evaluate_search_from": "9.0",
                "evaluate_search_to": "4.0",
            },
            "Up to is wrong: 4 is below",
        ),
        (
            {"evaluate_load": "Search", "evaluate_search_ttft": "300.0", "evaluate_stream": "false"},
            "needs streamed answers: stream them",
        ),
        ({"evaluate_load": "Rate", "evaluate_rate": "2, 2"}, "Requests per second is wrong: a rate is given twice"),
        ({"evaluate_load": "Rate", "evaluate_rate": "1e9"}, "is wrong"),
        ({"evaluate_load": "Rate", "evaluate_rate": "nan"}, "is wrong"),
        (
            {"evaluate_load": "Trace", "workload": "starter-code"},
            '1,024 of 1,024 prompts of the trace have no "timestamp"',
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence_before_any_work(
    studio_home: Workspace, query: dict[str, str], says: str
) -> None:
    at = studio.open_page("evaluate", variants=URL, **query)
    (error,) = at.error
    assert says.lower() in error.value.replace("\\", "").lower()
    assert "--" not in error.value
    assert at.button(key="evaluate_submit").disabled and jobs.count(studio_home) == 0


def test_each_way_says_when_to_use_it(studio_home: Workspace) -> None:
    at = opened(studio_home, {})
    for name, use in load_fields.KINDS.items():
        at.radio(key="evaluate_load").set_value(name).run()
        studio.check(at)
        assert use in studio.says(at)


def test_conversations_and_traces_are_told_in_the_preview_with_lengths_as_bars(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants="starter", workload="chat", evaluate_preview="true", evaluate_seed="3")
    assert "128 of 128 are conversations" in studio.says(at)
    (chart,) = at.get("plotly_chart")
    bars = json.loads(chart.proto.spec)["data"][0]
    assert sum(bars["y"]) == 128
    assert "Every line has a time" in studio.says(
        opened(studio_home, {"workload": "trace", "evaluate_preview": "true"})
    )


def test_fields_of_unknown_lines_are_shown_and_mapped(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL)
    lines = b'{"id": 1, "wording": "What is it?", "at": "2026-01-31T12:00:00", "rules": "Be brief."}\n'
    at.file_uploader(key="evaluate_file").set_value(("mine.jsonl", lines, "application/json")).run()
    studio.check(at)
    assert at.dataframe[0].value["wording"].tolist() == ["What is it?"]
    at.selectbox(key="evaluate_column_prompt").select("wording")
    at.selectbox(key="evaluate_column_system").select("rules")
    at.selectbox(key="evaluate_column_timestamp").select("at")
    at.button(key="evaluate_columns").click().run()
    studio.check(at)
    (remaining,) = workloads.list_saved(studio_home).values()
    line = json.loads(Path(remaining).read_text())
    assert (line["turns"], line["system"]) == (["What is it?"], "Be brief.") and line["timestamp"] == 0.0


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=300))
def test_every_prompt_is_in_one_bar_and_no_bar_is_missing(lengths: list[int]) -> None:
    bars = histogram(lengths)
    assert len(bars) <= 20 and all(a[1] == b[0] for a, b in pairwise(bars))
    assert [count for *_, count in bars] == [sum(low <= length < high for length in lengths) for low, high, _ in bars]
    assert sum(count for *_, count in bars) == len(lengths)


def test_what_the_gateway_recorded_is_a_workload_by_one_click(studio_home: Workspace) -> None:
    request = json.dumps({"messages": [{"role": "user", "content": "What is it?"}]})
    line = {"time": "2026-11-26T10:00:00Z", "path": "/v1/chat/completions", "status": 200, "request": request}
    (studio_home.settings.home / "gateway.log").write_text(json.dumps(line) + "\n")
    at = studio.open_page("evaluate", variants=URL)
    at.button(key="evaluate_recorded").click().run()
    studio.check(at)
    (stored,) = workloads.list_saved(studio_home)
    assert at.query_params["workload"] in (stored, [stored]) and "1 request became 1 line" in at.toast[0].value


@given(price=st.floats(0, 1e6), rates=st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=4, unique=True))
def test_a_number_in_the_command_is_the_number_asked_for(price: float, rates: list[float]) -> None:
    options = evaluations.read_options(rate=tuple(rates), price_per_hour=price)
    words = shlex.split(evaluate_command.command([URL], options))
    assert tuple(map(float, words[words.index("--rate") + 1].split(","))) == tuple(rates)
    assert float(words[words.index("--price-per-hour") + 1]) == price


def test_rows_left_out_of_an_upload_are_told_beside_it_and_times_are_asked_for(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL)
    rows = [{"prompt": f"p{n}", "timestamp": 250 * n} for n in range(12)]
    content = cases.lines([*rows, {"prompt": ""}]).encode()
    at.file_uploader(key="evaluate_file").set_value(("mine.jsonl", content, "application/json")).run()
    assert "or in milliseconds (over 2.75 s): say which with Unit of the times" in studio.says(at)
    assert workloads.list_saved(studio_home) == {}
    at.selectbox(key="evaluate_time_unit").select("milliseconds").run()
    studio.check(at)
    assert workloads.list_saved(studio_home), studio.says(at)
    changed = studio.says(at).replace("\\", "")
    assert 'is left out (line 13: there is no text in "prompt")' in changed
    assert "12 requests over 2.75 s (timestamps read as milliseconds)" in changed


def test_a_trace_of_lengths_is_uploaded_without_asking_for_a_column_of_prompts(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants="starter", evaluate_load="Trace")
    at.file_uploader(key="evaluate_file").set_value(("azure.csv", cases.content("azure.csv"), "text/csv")).run()
    studio.check(at)
    changed = studio.says(at).replace("\\", "")
    assert (
        "prompts of 300 to 311 tokens are generated (counted by the model's tokenizer); each begins differently"
        in changed
    )
