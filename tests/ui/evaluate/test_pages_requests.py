"""A stored evaluation asked further: what serving would cost, which answers changed, what every request did."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from app.results import requests as requests_view
from backend.domain.errors import NotFound
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.figures import figure
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.workload import workload
from backend.present.charts import alt_text
from backend.present.charts import requests as charts_requests
from backend.present.words.costs import NEVER
from backend.service import Workspace
from backend.service.evaluations import evaluations, request_pairs, workloads
from backend.store import history
from backend.worker.measuring.records import MeasuredLevel, write_records
from tests import simulated, studio

LEVELS, BLOCKS, REQUESTS = (1, 2), 2, 4
STARTER_FILE = workloads.find_file("starter-code")
STARTER = workload.parse_workload("starter-code", STARTER_FILE.read_bytes())


def record(index: int, stream: int, at: float, text: str, *, warm: bool = False, status: str = "ok") -> RequestRecord:
    """Sent at `at`, first token after 50 ms, ended after 200 ms."""
    answered = status == "ok"
    return RequestRecord(
        index=index,
        stream=stream,
        prompt=index,
        warm=warm,
        intended=at,
        sent=at,
        end=at + 0.2,
        status=status,
        first_content=at + 0.05 if answered else None,
        last_content=at + 0.2 if answered else None,
        chunk_times=(at + 0.05, at + 0.2) if answered else (),
        output_tokens=8 if answered else None,
        text=text if answered else "",
    )


def run(concurrency: int, answers: str) -> list[RequestRecord]:
    """A warm-up request a stream, then four measured ones in turns, of which the last fails at two streams."""
    records = [record(stream, stream, 0.0, "", warm=True) for stream in range(concurrency)]
    for number in range(REQUESTS):
        failed = concurrency == 2 and number == REQUESTS - 1
        at = 0.3 * (1 + number // concurrency)
        records.append(
            record(number, number % concurrency, at, f"{answers} {number}", status="reset" if failed else "ok")
        )
    return records


@pytest.fixture
def stored(studio_home: Workspace, tmp_path: Path) -> str:
    document = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.31), repeats=BLOCKS, levels=LEVELS)
    document = document.model_copy(
        update={
            "options": EvaluateOptions(
                concurrency=LEVELS, repeats=BLOCKS, workload=str(STARTER_FILE), price_per_hour=1.2
            ),
            "workload": STARTER.about(),
        }
    )
    texts = ("the answer is", "the answer was")
    records = [
        MeasuredLevel(v, Load("closed", c), [run(c, texts[v]) for _ in range(BLOCKS)]) for v in range(2) for c in LEVELS
    ]
    write_records(tmp_path / "records.parquet", [result.name for result in document.variants], records)
    return keep(studio_home, document, tmp_path)


def keep(home: Workspace, document: Evaluation, folder: Path) -> str:
    identity = studio.evaluation(home, document)
    with home.store.session() as session:
        history.get_evaluation(session, identity).path = str(folder)
    return identity


def test_answers_are_paired_by_block_and_request_and_the_worst_come_first(studio_home: Workspace, stored: str) -> None:
    pairs = request_pairs.read_pairs(evaluations.show(studio_home, stored), "w8a8", Load("closed", 1))
    assert len(pairs) == BLOCKS * REQUESTS and not any(pair.same for pair in pairs)
    # "the answer is 0" against "the answer was 0": three of four words.
    assert [pair.worse for pair in pairs] == pytest.approx([0.25] * len(pairs))
    assert {(pair.block, pair.number) for pair in pairs} == {(b, n) for b in range(BLOCKS) for n in range(REQUESTS)}
    assert all(pair.variant_s == pytest.approx(0.2) for pair in pairs)


def test_the_prompt_is_the_line_that_was_sent(studio_home: Workspace, stored: str) -> None:
    pair = next(
        p
        for p in request_pairs.read_pairs(evaluations.show(studio_home, stored), "w8a8", Load("closed", 2))
        if p.block == 1 and p.number == 2
    )
    assert pair.prompt_text == STARTER.prompts[pair.prompt].prompt


def test_a_workload_that_has_changed_gives_no_prompt(studio_home: Workspace, tmp_path: Path) -> None:
    document = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.3), repeats=BLOCKS, levels=LEVELS)
    records = [MeasuredLevel(v, Load("closed", 1), [run(1, "same")]) for v in range(2)]
    write_records(tmp_path / "records.parquet", ["original", "w8a8"], records)
    pairs = request_pairs.read_pairs(
        evaluations.show(studio_home, keep(studio_home, document, tmp_path)), "w8a8", Load("closed", 1)
    )
    assert pairs and all(pair.prompt_text is None and pair.same for pair in pairs)
    assert requests_view.pair_rows(pairs)[0]["Prompt"] == "line 1"


def test_warm_up_and_failures_are_no_pairs_but_stand_on_the_clock(studio_home: Workspace, stored: str) -> None:
    view = evaluations.show(studio_home, stored)
    assert len(request_pairs.read_pairs(view, "w8a8", Load("closed", 2))) == BLOCKS * (REQUESTS - 1)
    one = request_pairs.read_run(view, Load("closed", 2), "original", 0)
    figure = charts_requests.timeline("original", "2 streams", one, "here")
    counts = {trace["name"]: len(trace["x"]) for trace in figure["data"]}
    assert counts == {"Warm-up": 2, "Waiting for the first token": 3, "Answering": 3, "Failed": 1}
    header, *rows = alt_text.csv(figure).splitlines()
    assert header.startswith("Series,Sent after (s)") and len(rows) == 9
    silent = [
        record.model_copy(update={"first_content": None, "chunk_times": ()})
        for record in one
        if record.ok and not record.warm
    ]
    drawn = charts_requests.timeline("original", "2 streams", silent, "here")
    assert [trace["name"] for trace in drawn["data"]] == ["Empty answer"] and "Empty answer" in alt_text.alt(drawn)
    assert requests_view.run_sentence("original", one) == "4 measured requests of original and 2 of warm-up; 1 failed."


def test_the_distribution_ends_at_one_and_keeps_its_ends(studio_home: Workspace) -> None:
    many = {"a": [100 + number / 10 for number in range(10_000)]}
    (trace,) = charts_requests.distribution("client_latency_ms", "1 stream", many, {"a": 0}, "here")["data"]
    assert len(trace["x"]) <= charts_requests.MOST_POINTS
    assert trace["x"][0] == pytest.approx(100.0) and trace["x"][-1] == pytest.approx(1099.9) and trace["y"][-1] == 1
    assert trace["y"] == sorted(trace["y"])
    assert charts_requests.distribution("ttft_ms", "1 stream", {"a": []}, {"a": 0}, "here")["data"] == []
    assert charts_requests.timeline("a", "1 stream", [], "here")["data"] == []


def test_records_that_are_gone_are_told_on_the_page(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    with pytest.raises(NotFound, match="no longer at"):
        request_pairs.read_pairs(evaluations.show(studio_home, identity), "w8a8", Load("closed", 1))
    at = studio.open_page("evaluate", id=identity, evaluate_view="Requests")
    assert "are no longer at" in studio.says(at)


def test_the_page_shows_answers_side_by_side_and_the_run(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page(
        "evaluate", id=stored, evaluate_view="Requests", evaluate_requests_at="2 streams", evaluate_requests_block="2"
    )
    text = studio.says(at)
    assert "0 of 6 answers have the same words as those of original" in text
    assert "**original**" in text and "**w8a8**" in text
    assert "reads every" not in text


def test_requests_are_read_only_when_asked_for(studio_home: Workspace, stored: str) -> None:
    assert "Answers that changed most" not in studio.says(studio.open_page("evaluate", id=stored))


def costs(at: AppTest) -> list[dict[str, str]]:
    return table(at, "Highest load within the limits")


def table(at: AppTest, column: str) -> list[dict[str, str]]:
    """The rows of the table with that column."""
    (result,) = [frame.value for frame in at.dataframe if column in frame.value.columns]
    rows: list[dict[str, str]] = result.to_dict("records")
    return rows


def test_cost_fields_live_in_the_url_and_change_the_figures(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page(
        "evaluate",
        id=stored,
        evaluate_view="Price",
        evaluate_cost_hour="3.6",
        evaluate_cost_api_in="0",
        evaluate_cost_api_out="4",
        evaluate_cost_requests="1000000",
    )
    rows = costs(at)
    level = evaluations.show(studio_home, stored).document.variants[0].levels[-1]
    assert rows[0]["Output tokens/s"] == figure(level.output_tokens_per_s)
    assert float(rows[0]["USD per million output tokens"]) == pytest.approx(1000 / level.output_tokens_per_s, rel=0.01)
    cheaper = rows[0]["Cheaper than the hosted API from"]
    assert "of full load" in cheaper or "never" in cheaper
    assert (
        "machine" in rows[0]["1,000,000 requests per month"]
        and "more may fit" in rows[0]["Highest load within the limits"]
    )


def test_a_limit_that_nothing_keeps_says_so(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page("evaluate", id=stored, evaluate_view="Price", evaluate_cost_ttft="0.001")
    assert {row["Highest load within the limits"] for row in costs(at)} == {NEVER}


def test_the_price_of_an_instance_is_named_with_its_day(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page("evaluate", id=stored, evaluate_view="Price", evaluate_cost_instance="ml.g5.xlarge")
    assert "as of" in studio.says(at)
    assert at.text_input(key="evaluate_cost_hour_of_ml.g5.xlarge").disabled


def drawn(at: AppTest, title: str) -> list[float]:
    """The heights of the first series of the chart with that title."""
    specs = [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
    (result,) = [spec for spec in specs if title in spec["layout"]["title"]["text"]]
    heights: list[float] = result["data"][0]["y"]
    return heights


def test_every_price_of_the_page_follows_the_hour_and_the_discount(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page("evaluate", id=stored, evaluate_view="Price")
    at.selectbox(key="evaluate_price_shown").set_value("blended_sagemaker").run()
    before, message = drawn(at, "SageMaker-compatible"), studio.says(at)
    assert "ignores prefill and prices input at 0" in message and "3 input tokens per output token" in message
    assert "An hour costs 1.2 USD. The speed" in message
    at.number_input(key="evaluate_cost_hour").set_value(4.8)
    at.number_input(key="evaluate_cost_discount").set_value(50.0).run()
    studio.check(at)
    assert drawn(at, "SageMaker-compatible") == pytest.approx([2 * value for value in before])
    assert (
        "An hour costs 4.8 USD, less 50%. This was chosen afterwards; the evaluation itself used 1.2 USD."
        in studio.says(at)
    )
    level = evaluations.show(studio_home, stored).document.variants[0].levels[-1]
    once = 2.4 / (level.input_tokens_per_s * 3600 / 1e6)
    assert float(costs(at)[0]["USD per million input tokens"]) == pytest.approx(once, rel=0.01)
    at.selectbox(key="evaluate_price_shown").set_value("blended").run()
    assert "10% of the hour is charged to input" in studio.says(at)
    at = studio.open_page("evaluate", id=stored, evaluate_cost_hour="4.8", evaluate_cost_discount="50")
    (comparison,) = (link.proto for link in at.get("page_link") if link.proto.label == "Compare")
    assert parse_qs(comparison.query_string) == {"ids": [stored], "prices": ["4.8"], "discount": ["50"]}
    assert table(at, "Time to first token (ms)")[1]["Price per million input tokens (USD)"] == pytest.approx(
        once, rel=0.005
    )


@pytest.mark.parametrize("hour", ["nan", "inf", "-1", "many"])
def test_an_address_with_no_price_leaves_the_one_that_was_given(studio_home: Workspace, stored: str, hour: str) -> None:
    at = studio.open_page(
        "evaluate",
        id=stored,
        evaluate_view="Price",
        evaluate_cost_hour=hour,
        evaluate_cost_ttft=hour,
        evaluate_cost_discount=hour,
    )
    assert "An hour costs 1.2 USD. The speed" in studio.says(at)


def test_without_a_price_it_says_that_none_was_given(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation(per_hour=None))
    rows = costs(studio.open_page("evaluate", id=identity, evaluate_view="Price"))
    assert {row["USD per million output tokens"] for row in rows} == {"no price given"}


def test_goodput_is_counted_again_when_a_limit_moves(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page("evaluate", id=stored)
    at.slider(key="evaluate_slo_latency").set_value(150.0).run()
    studio.check(at)
    assert {row["Within the limits"].partition(" ")[0] for row in table(at, "Highest goodput at")} == {"0.0%"}
    at.slider(key="evaluate_slo_latency").set_value(250.0).run()
    (first, _) = table(at, "Highest goodput at")
    level = evaluations.show(studio_home, stored).document.variants[0].levels[0]
    assert first["Highest goodput at"] == "concurrency 1"
    assert first["Goodput (requests/s)"] == figure(BLOCKS * REQUESTS / level.duration_s)
    assert "of them within the limits" in json.loads(at.get("plotly_chart")[4].proto.spec)["data"][0]["hovertext"][0]


def test_servers_and_percentiles_stand_beside_the_figures(studio_home: Workspace, stored: str) -> None:
    at = studio.open_page("evaluate", id=stored, evaluate_percentiles="true")
    (first, _) = table(at, "Peak memory")
    assert (first["Ready in"], first["Peak memory"], first["Acceptance rate"]) == ("24 s", "2.15 GB", "no speculation")
    assert {row["Latency (ms)"] for row in table(at, "p99")} >= {"Time to first token", "Chunk gap"}
