"""Evaluate and Compare in every state: asked, running, failed, done, unknown. Figures are simulated, stores are
real."""

from __future__ import annotations

import json
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import charts, navigation
from app.compare import side_by_side
from app.evaluate import load_fields
from app.results import measurement_conditions
from backend.domain.errors import InvalidWorkload, NotFound, RequestError
from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Variant
from backend.domain.jobs.jobs import EvaluateSpec, Event, JobState
from backend.domain.what_if import costs
from backend.domain.what_if.costs import WhatIf
from backend.service import Workspace
from backend.service.evaluations import evaluations, workloads
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.settings import ASSETS
from backend.store import history, queue
from tests import simulated, studio

URL_A, URL_B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def point(variant: str, concurrency: int, rate: float | None) -> Event:
    return Event(
        kind="point", data={"variant": variant, "concurrency": concurrency, "block": 0, "output_tokens_per_s": rate}
    )


def evaluate_job(home: Workspace, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    variants = tuple(Variant(name=name, source=name, kind="url", url=name) for name in (URL_A, URL_B))
    spec = EvaluateSpec(variants=variants, options=EvaluateOptions())
    return studio.put(home, spec, "Evaluate two", state, **changes)


def param(at: AppTest, name: str) -> str:
    value = at.query_params[name]
    return value if isinstance(value, str) else value[0]


def headings(at: AppTest) -> list[str]:
    """The titles of the charts on the page."""
    return [json.loads(chart.proto.spec)["layout"]["title"]["text"] for chart in at.get("plotly_chart")]


def test_an_empty_form_says_what_will_stand_there(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate")
    assert "Choose the variants to measure." in studio.says(at)
    assert at.button(key="evaluate_submit").disabled


def test_variants_and_load_of_the_url_are_one_job(studio_home: Workspace) -> None:
    at = studio.open_page(
        "evaluate",
        variants=f"{URL_A},{URL_B}",
        evaluate_concurrency="1, 8",
        evaluate_repeats="3",
        evaluate_discount="20.0",
        evaluate_price="2.5",
    )
    assert "2 variants x 2 levels x 3 repeats = 12 runs" in studio.says(at)
    assert "no verdict" in studio.says(at)
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    (job,) = jobs.listing(studio_home)
    spec = jobs.specification(studio_home, job.id)
    assert [variant["url"] for variant in spec["variants"]] == [URL_A, URL_B]
    assert spec["options"]["concurrency"] == [1, 8]
    assert (spec["options"]["price_per_hour"], spec["options"]["discount"]) == (2.5, 0.2)
    assert param(at, "job") == job.id


def test_a_double_click_is_one_job_and_later_the_same_question_is_another(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    button = at.button(key="evaluate_submit")
    button.click().run()
    at.query_params.clear()
    at.query_params["variants"] = URL_A
    at.run()
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    (job,) = jobs.listing(studio_home)
    jobs.cancel(studio_home, job.id)
    at.query_params.clear()
    at.query_params["variants"] = URL_A
    at.run()
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    assert len(jobs.listing(studio_home)) == 2


def test_a_folder_with_a_comma_is_one_variant(studio_home: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "one, two%2C"
    shutil.copytree(ASSETS / "starter" / "draft", folder)
    at = studio.open_page("evaluate", variants=navigation.join_values(str(folder), URL_A))
    assert at.multiselect(key="evaluate_variants").value == [str(folder), URL_A]
    at.multiselect(key="evaluate_variants").set_value([str(folder)]).run()
    studio.check(at)
    assert navigation.distinct_values([param(at, "variants")]) == [str(folder)]


def test_the_rest_of_the_load_is_kept_in_the_url_and_asked_for(studio_home: Workspace) -> None:
    at = studio.open_page(
        "evaluate",
        variants=URL_A,
        evaluate_seconds="12.0",
        evaluate_temperature="0.5",
        evaluate_interleave="restart",
        evaluate_seed="7",
        evaluate_warmup_requests="3",
        evaluate_input_output_ratio="2.0",
        evaluate_timeout_s="9.0",
    )
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    options = jobs.specification(studio_home, jobs.listing(studio_home)[0].id)["options"]
    by_name = {
        name: options[name] for name in ("seconds", "temperature", "interleave", "seed", "warmup_requests", "timeout_s")
    }
    assert by_name == {
        "seconds": 12.0,
        "temperature": 0.5,
        "interleave": "restart",
        "seed": 7,
        "warmup_requests": 3,
        "timeout_s": 9.0,
    }
    assert options["input_output_ratio"] == 2.0


def test_earlier_evaluations_say_how_long(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=f"{URL_A},{URL_B}")
    assert "unknown: nothing has been evaluated here yet" in studio.says(at)
    done = evaluate_job(studio_home, JobState.SUCCEEDED)
    with studio_home.store.session() as session:
        row = queue.get(session, done.id)
        assert row.started_at is not None
        row.finished_at = row.started_at + timedelta(minutes=5)
    at = studio.open_page("evaluate", variants=URL_A)
    assert "About 2.5 min, at the pace of an earlier evaluation here" in studio.says(at)


@pytest.mark.parametrize(
    "query",
    [
        {"evaluate_repeats": "x"},
        {"evaluate_repeats": "-3"},
        {"evaluate_seconds": "nan"},
        {"evaluate_interleave": "<b>"},
        {"evaluate_discount": "400"},
        {"evaluate_seed": "1e99"},
        {"workload": "../../etc/passwd"},
        {"workload": "x" * 5000},
        {"evaluate_concurrency": "9" * 5000},
        {"evaluate_price": "free"},
    ],
)
def test_nonsense_in_the_url_is_left_out_or_told(studio_home: Workspace, query: dict[str, str]) -> None:
    at = studio.open_page("evaluate", variants=URL_A, **query)
    assert all(len(element.value) < 1000 for element in [*at.error, *at.warning])
    assert len(at.error) == (1 if "evaluate_concurrency" in query else 0)


@pytest.mark.parametrize(
    "source", ["a-" + "x" * 5000, "x" * 5000, "a-\0", "~nobody/x", ",".join(f"m{n}" for n in range(40)), "http://"]
)
def test_variants_that_cannot_be_are_one_sentence(studio_home: Workspace, source: str) -> None:
    at = studio.open_page("evaluate", variants=source)
    assert len(at.error) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluate_concurrency": "one"}, "is not a list such as"),
        ({"evaluate_concurrency": "4,4"}, "is given twice"),
        ({"evaluate_concurrency": "0"}, "at least 1"),
        ({"evaluate_concurrency": "9999"}, "at most 4096"),
        ({"evaluate_concurrency": " "}, "at least 1"),
        ({"variants": "a-gone"}, "no artifact a-gone"),
        ({"variants": "nowhere"}, "There is no model"),
        ({"variants": "<img src=x onerror=alert(1)>"}, "There is no model"),
        ({"variants": "starter"}, "not installed"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(studio_home: Workspace, changes: dict[str, str], says: str) -> None:
    at = studio.open_page("evaluate", **{"variants": URL_A, **changes})
    assert any(says in error.value for error in at.error), studio.says(at)
    assert not any(error.value.startswith("--") for error in at.error)
    assert at.button(key="evaluate_submit").disabled


def test_a_workload_is_previewed_with_its_lengths(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.toggle(key="evaluate_preview").set_value(True).run()
    studio.check(at)
    assert "Prompts" in studio.says(at)
    assert "Characters" in at.dataframe[0].value.columns


def test_an_uploaded_workload_is_kept_and_chosen_by_its_name(studio_home: Workspace) -> None:
    saved = workloads.save(studio_home, "../my <b>chats</b>.jsonl", b'{"prompt": "hello"}\n')
    assert workloads.save(studio_home, "../my <b>chats</b>.jsonl", b'{"prompt": "hello"}\n') == saved
    assert workloads.list_saved(studio_home)[saved].parent == studio_home.settings.home / "workloads"
    at = studio.open_page("evaluate", variants=URL_A, workload=saved)
    assert saved in [box.value for box in at.selectbox]
    removed = studio.open_page("evaluate", variants=URL_A, workload="gone")
    assert any("no workload gone" in box.value for box in removed.warning)


def test_a_list_drawn_before_an_upload_undoes_no_choice(studio_home: Workspace) -> None:
    """A browser that is busy still sends the list that stood there when the file was taken."""
    saved = workloads.save(studio_home, "mine.jsonl", b'{"prompt": "hello"}\n')
    at = studio.open_page("evaluate", variants=URL_A)
    drawn_before = at.selectbox(key="evaluate_workload_short-questions")
    at.query_params["workload"] = saved
    drawn_before.set_value("chat").run()
    assert at.selectbox(key=f"evaluate_workload_{saved}").value == saved
    at.selectbox(key=f"evaluate_workload_{saved}").set_value("chat").run()
    assert at.selectbox(key="evaluate_workload_chat").value == "chat", "a choice of a person's own"


def test_token_lengths_are_those_of_the_first_variants_tokenizer(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=f"starter,{URL_A}", evaluate_preview="true")
    text = studio.says(at)
    assert "tokens" in text and "by the tokenizer of starter" in text
    assert all(
        0 < tokens < characters
        for tokens, characters in zip(at.dataframe[0].value["Tokens"], at.dataframe[0].value["Characters"], strict=True)
    )
    result = workloads.facts_for(studio_home, "starter-code", None)
    assert (
        workloads.token_lengths(studio_home, result, URL_A) is None
        and workloads.token_lengths(studio_home, result, "nowhere") is None
    )


def test_a_workload_is_read_once_until_its_file_changes(studio_home: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n')
    first = workloads.facts_for(studio_home, str(file), None)
    assert workloads.facts_for(studio_home, str(file), None) is first
    file.write_text('{"prompt": "one"}\n{"prompt": "another"}\n')
    changed = workloads.facts_for(studio_home, str(file), None)
    assert changed.prompts == 2 and len(changed.first) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"prompt": "a",}', r"line 2: it is not JSON \(column"),
        (b'{"prompt": "a"', "line 2: it is not JSON"),
        (b'{"prompt": "\xff"}', r"not UTF-8 text \(line 2, byte 29"),
        (b'{"prompt": "\\ud800"}', "line 2: it has half a character"),
        (b'{"prompt": 7}', 'line 2: there is no text in "prompt"'),
        (b'{"prompt": "a", "max_tokens": true}', "line 2: its longest answer"),
        (b"[" * 100_000, "line 2: it is not JSON"),
    ],
)
def test_a_broken_line_is_named_with_what_is_wrong(studio_home: Workspace, line: bytes, says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        workloads.save(studio_home, "mine.jsonl", b'{"prompt": "a"}\n' + line + b"\n")
    assert workloads.list_saved(studio_home) == {}


def test_a_broken_file_is_told_through_the_page_and_nothing_is_kept(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(("<b>.jsonl", b'{"prompt": \n', "application/jsonl")).run()
    studio.check(at)
    for _ in range(2):
        assert "its only line cannot be used" in studio.says(at) and "line 1: it is not JSON" in studio.says(at)
        at.run()
    assert workloads.list_saved(studio_home) == {}


def test_a_broken_upload_is_refused_and_nothing_is_kept(studio_home: Workspace) -> None:
    with pytest.raises(InvalidWorkload, match="line 2"):
        workloads.save(studio_home, "mine.jsonl", b'{"prompt": "a"}\n{"prompt": \n')
    assert workloads.list_saved(studio_home) == {}


def test_a_file_is_uploaded_through_the_page(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(
        ("chats.jsonl", b'{"prompt": "hello"}\n', "application/jsonl")
    ).run()
    studio.check(at)
    (remaining,) = workloads.list_saved(studio_home)
    assert param(at, "workload") == remaining


def test_a_running_evaluation_draws_its_points_as_approximate(studio_home: Workspace) -> None:
    events = [point(URL_A, 1, 20.0), point(URL_B, 1, 30.0), point(URL_A, 1, 22.0), point(URL_B, 4, None)]
    job = evaluate_job(studio_home, JobState.RUNNING, events=events, progress=0.4, message="Measuring")
    assert job.started_at is not None
    earlier = point(URL_A, 1, 99.0).model_copy(update={"at": job.started_at - timedelta(hours=1)})
    with studio_home.store.session() as session:
        history.append(session, job.id, [earlier])
    at = studio.open_page("evaluate", job=job.id)
    assert headings(at) == [charts.TITLE]
    assert "4 runs so far. Approximate" in studio.says(at)
    at.button(key=f"evaluate_cancel-{job.id}").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).cancel_requested


def test_a_queued_evaluation_waits_for_its_first_point(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", job=evaluate_job(studio_home).id)
    assert headings(at) == [charts.TITLE]
    assert "0 runs so far" in studio.says(at)


def test_a_failed_evaluation_says_why_and_can_be_measured_again(studio_home: Workspace) -> None:
    job = evaluate_job(studio_home, JobState.FAILED, error="Cannot reach http://127.0.0.1:1.")
    at = studio.open_page("evaluate", job=job.id)
    assert "Cannot reach" in studio.says(at)
    at.button(key="evaluate_measure-again").click().run()
    studio.check(at)
    assert jobs.listing(studio_home)[0].parent == job.id
    assert param(at, "job") == jobs.listing(studio_home)[0].id


def test_a_succeeded_job_leads_to_its_evaluation(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    job = evaluate_job(studio_home, JobState.SUCCEEDED, result=json.dumps({"evaluation": identity}))
    at = studio.open_page("evaluate", job=job.id)
    assert param(at, "id") == identity
    assert "job" not in at.query_params


@pytest.mark.parametrize(
    "query", [{"job": "j-none"}, {"id": "e-none"}, {"id": "'; drop table jobs"}, {"job": "../../x"}]
)
def test_an_unknown_id_is_one_sentence(studio_home: Workspace, query: dict[str, str]) -> None:
    at = studio.open_page("evaluate", **query)
    assert len(at.error) == 1
    assert "another home" in at.error[0].value


def test_a_job_of_another_kind_is_one_sentence(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", job=studio.install_job(studio_home).id)
    assert "is no evaluation" in at.error[0].value


def test_a_result_says_its_verdicts_first_then_draws(studio_home: Workspace) -> None:
    document = simulated.evaluation()
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, document))
    text = studio.says(at)
    assert text.count("At 16 streams") == 3
    assert at.title[0].value == "starter vs w8a8"
    assert at.success[0].value.startswith("**w8a8-draft** is ")
    assert [(tile.label, tile.delta) for tile in at.metric] == [
        ("original", "baseline"),
        *((name, "faster") for name in ("w8a8", "draft", "w8a8-draft")),
    ]
    assert "x faster" in at.table[0].value.iloc[1]["16 streams"]
    assert "KL 0.0004" in at.table[0].value.iloc[1]["Quality in figures"]
    assert "These figures are simulated" in text
    assert "Speed per user against total throughput" in headings(at)[0]
    assert len(headings(at)) == 4
    assert any("Time to first token (ms)" in frame.value.columns for frame in at.dataframe)
    files = [button.proto.label for button in at.get("download_button")]
    assert [label for label in files if label != "CSV"] == ["Report (HTML)", "Figures (JSON)", "Table (CSV)"]
    assert files.count("CSV") == len(headings(at))
    assert all("is better: at concurrency 16" in chart.proto.alt for chart in at.get("plotly_chart")[2:4])
    assert links_to(at, "Compare")


def test_measuring_again_writes_the_address_that_a_refresh_opens(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, simulated.evaluation()), slo_ttft="5.0")
    (again,) = [button for button in at.button if button.label == "Measure again"]
    again.click().run()
    studio.check(at)
    assert navigation.distinct_values([param(at, "variants")]) == ["original", "w8a8", "draft", "w8a8-draft"]
    assert "id" not in at.query_params and at.multiselect(key="evaluate_variants").value[0] == "original"


def links_to(at: AppTest, label: str) -> bool:
    return label in studio.links(at)


def test_a_result_without_price_quality_or_rival_is_not_blank(studio_home: Workspace) -> None:
    document = simulated.evaluation(["original"], [1.0], per_hour=None, with_quality=False, repeats=3)
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, document), evaluate_view="Quality")
    text = studio.says(at)
    assert "nothing to compare" in text
    assert "Quality was not measured" in text


def test_levels_that_are_not_the_servers_are_named(studio_home: Workspace) -> None:
    limited = simulated.level(4, client_limited=True)
    failing = simulated.level(1, invocation_errors=30, errors={"timeout": 30})
    document = simulated.evaluation(["a"], [1.0]).model_copy(
        update={"variants": [simulated.result("a", [failing, limited])]}
    )
    rows = measurement_conditions.validity_rows(document)
    assert [row["Valid"] for row in rows] == ["no", "no"]
    assert "timeout 30" in rows[0]["Errors"]
    assert "lagged" in rows[1]["Why not"]
    assert (rows[1]["Client headroom"], rows[1]["Repeats"]) == ("96%", "5")
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, document))
    assert "2 of 2 levels are not the server's figures" in studio.says(at)


def test_levels_whose_tokens_were_not_told_are_named(studio_home: Workspace) -> None:
    silent = simulated.uncounted(simulated.level(4, requests_per_s=1.5))
    document = simulated.evaluation(["a"], [1.0]).model_copy(update={"variants": [simulated.result("a", [silent])]})
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, document))
    assert "1 of 1 levels are valid in part" in studio.says(at)


def test_a_report_that_is_gone_is_told(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    with pytest.raises(NotFound, match="no longer"):
        evaluations.report_file(studio_home, identity)


def test_nothing_to_compare_says_what_will_stand_there(studio_home: Workspace) -> None:
    assert "side by side" in studio.says(studio.open_page("compare"))


def test_the_conditions_name_the_folder_behind_a_short_name(studio_home: Workspace) -> None:
    document = simulated.evaluation(["tiny"], [1.0])
    variant = document.variants[0].variant.model_copy(update={"source": "/data/models/tiny"})
    results = [document.variants[0].model_copy(update={"variant": variant})]
    identity = studio.evaluation(studio_home, document.model_copy(update={"variants": results}))
    at = studio.open_page("evaluate", id=identity, evaluate_view="Conditions")
    assert "Variants: `tiny`: `/data/models/tiny`." in studio.says(at)


def test_a_typed_address_is_shown_by_its_short_name(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate")
    at.multiselect(key="evaluate_variants").set_value([f"{URL_A}/v1#m"]).run()
    studio.check(at)
    field = at.multiselect(key="evaluate_variants").proto
    assert param(at, "variants") == f"{URL_A}/v1#m"
    assert field.set_value and list(field.raw_values) == ["m at 127.0.0.1:1"]


def test_compare_opens_with_the_latest_evaluation(studio_home: Workspace) -> None:
    two(studio_home)
    at = studio.open_page("compare")
    latest = evaluations.listing(studio_home, limit=1)[0].id
    assert param(at, "ids") == latest and "Speed per user against total throughput" in headings(at)[0]
    assert "ids" not in studio.open_page("compare", presets="starter/lower-cost").query_params


def test_evaluate_lists_past_evaluations_before_the_form(studio_home: Workspace) -> None:
    two(studio_home)
    at = studio.open_page("evaluate")
    assert [head.value for head in at.subheader] == ["Past evaluations"] and not at.multiselect
    at.button(key="evaluate_new").click().run()
    studio.check(at)
    assert param(at, "new") == "true" and at.multiselect(key="evaluate_variants").value == []
    assert studio.open_page("evaluate", evaluate_concurrency="1").multiselect(key="evaluate_variants")


def test_a_new_evaluation_begins_with_the_newest_artifact_and_its_model(studio_home: Workspace) -> None:
    artifact_id = studio.artifact(studio_home, studio.optimize_job(studio_home), models.resolve(studio_home, "starter"))
    at = studio.open_page("evaluate")
    assert at.multiselect(key="evaluate_variants").value == ["starter", artifact_id]
    two(studio_home)
    at = studio.open_page("evaluate")
    at.button(key="evaluate_new").click().run()
    assert at.multiselect(key="evaluate_variants").value == ["starter", artifact_id]


def two(home: Workspace) -> list[str]:
    first = simulated.evaluation(per_hour=1.2)
    other = simulated.evaluation(["original", "w8a8"], [1.0, 1.5], per_hour=None).model_copy(
        update={"hardware": {"cpu": "Another CPU", "cores": 8}}
    )
    return [studio.evaluation(home, first, "e-1", "First"), studio.evaluation(home, other, "e-2", "Second")]


def test_evaluations_of_the_url_stand_side_by_side_pareto_first(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join([*two(studio_home), "e-gone"]))
    assert "Speed per user against total throughput" in headings(at)[0]
    assert "e-gone" in at.error[0].value
    conditions = next(frame.value for frame in at.dataframe if "Condition" in frame.value.columns)
    assert "Hardware" in list(conditions["Condition"])
    assert "Workload" not in list(conditions["Condition"])
    assert "there is no test between them" in studio.says(at)
    at.toggle(key="compare_differences").set_value(False).run()
    studio.check(at)
    conditions = next(frame.value for frame in at.dataframe if "Condition" in frame.value.columns)
    assert "Workload" in list(conditions["Condition"])


def test_a_price_is_recomputed_and_kept_in_the_url(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two(studio_home)))
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.number_input(key="compare_discount").set_value(50.0).run()
    studio.check(at)
    assert param(at, "prices") == ",0.6"
    assert param(at, "discount") == "50"
    assert "the cheapest here" in studio.says(at)
    again = studio.open_page("compare", ids="e-1,e-2", prices=",0.6", discount="50")
    assert again.number_input(key="compare_price_e-2").value == 0.6
    assert again.number_input(key="compare_discount").value == 50.0


def test_what_is_downloaded_has_the_prices_that_are_shown(studio_home: Workspace) -> None:
    two(studio_home)

    def script() -> None:
        import streamlit as st

        from app.compare import form, what_if_url
        from app.session import workspace
        from backend.service.evaluations import evaluations

        what_if_url.follow()
        views = [evaluations.show(workspace(), name) for name in ("e-1", "e-2")]
        for request, document in form.what_if(views):
            st.text(
                f"{request.per_hour} {request.discount} {document.options.price_per_hour} {document.options.discount}"
            )

    at = AppTest.from_function(script, default_timeout=studio.TIMEOUT_S).run()
    assert [text.value for text in at.text] == ["None None 1.2 0.0", "None None None 0.0"]
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.number_input(key="compare_discount").set_value(50.0).run()
    studio.check(at)
    assert [text.value for text in at.text] == ["None 0.5 1.2 0.5", "0.6 0.5 0.6 0.5"]


def test_the_fields_follow_the_address_when_a_link_or_back_changes_it(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two(studio_home)))
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.slider[0].set_value(at.slider[0].max / 4).run()
    assert at.number_input(key="compare_price_e-2").value == 0.6
    at.query_params["prices"] = "2.5,0.8"
    del at.query_params["slo_ttft"]
    at.run()
    studio.check(at)
    assert [field.value for field in at.number_input][:2] == [2.5, 0.8]
    assert at.slider[0].value == at.slider[0].max
    at.number_input[1].set_value(0.9).run()
    assert param(at, "prices") == "2.5,0.9"
    assert at.code[0].value.endswith("?ids=e-1%2Ce-2&prices=2.5%2C0.9"), "the link to copy is that of the fields"


def test_a_latency_limit_names_the_best_level_of_each_variant_and_stays_in_the_url(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two(studio_home)))
    before = list(at.dataframe[0].value["Best at"])
    slider = at.slider[0]
    slider.set_value(slider.max / 4).run()
    studio.check(at)
    remaining = param(at, "slo_ttft")
    assert float(remaining) == pytest.approx(slider.max / 4)
    limited = list(at.dataframe[0].value["Best at"])
    assert limited != before
    again = studio.open_page("compare", ids="e-1,e-2", slo_ttft=remaining)
    assert list(again.dataframe[0].value["Best at"]) == limited
    at.slider[0].set_value(slider.max).run()
    assert "slo_ttft" not in at.query_params


@pytest.mark.parametrize(
    "query", [{"prices": "x,-1,nan"}, {"discount": "many"}, {"discount": "400"}, {"prices": "1e400"}]
)
def test_malformed_prices_in_the_url_are_left_out(studio_home: Workspace, query: dict[str, str]) -> None:
    at = studio.open_page("compare", ids=",".join(two(studio_home)), **query)
    assert at.number_input(key="compare_price_e-1").value == 1.2
    assert not at.error


def test_picking_evaluations_writes_the_url(studio_home: Workspace) -> None:
    two(studio_home)
    at = studio.open_page("compare")
    at.multiselect(key="compare_ids").set_value(["e-2"]).run()
    studio.check(at)
    assert param(at, "ids") == "e-2"
    assert headings(at) and at.success[0].value.startswith("**w8a8** is "), "the verdict comes first"
    assert re.fullmatch(r"Second, \d{4}-\d\d-\d\d \d\d:\d\d", at.multiselect(key="compare_ids").options[0])


def test_repricing_takes_the_hour_less_the_discount() -> None:
    level = simulated.level(4)
    document = simulated.evaluation(["a"], [1.0], per_hour=2.0).model_copy(
        update={"variants": [simulated.result("a", [level])]}
    )
    assert costs.repriced(document, WhatIf(per_hour=2.0)) is document
    (half,) = costs.repriced(document, WhatIf(discount=0.5)).variants[0].levels
    (double,) = costs.repriced(document, WhatIf(per_hour=4.0, discount=0.5)).variants[0].levels
    assert half.price and double.price
    assert double.price.per_million_output == pytest.approx(2.0 / (level.output_tokens_per_s * 3600 / 1e6))
    assert double.price.blended == pytest.approx(2 * (half.price.blended or 0))


def test_a_document_without_a_price_stays_without_one() -> None:
    document = simulated.evaluation(per_hour=None)
    assert costs.repriced(document, WhatIf(discount=0.3)) == document
    assert side_by_side.cheapest_sentence(document) is None


def test_the_live_chart_takes_the_mean_of_the_runs() -> None:
    points = [point("a", 1, rate).data for rate in (10.0, 20.0)] + [point("<b>b</b>", 4, 5.0).data]
    figure = charts.live_throughput(points, ["a"], "dark")
    assert figure["data"][0]["y"] == [15.0]
    assert figure["data"][1]["name"] == "&lt;b&gt;b&lt;/b&gt;"
    assert "mean of 2 runs" in figure["data"][0]["hovertext"][0]


def test_words_of_the_url_are_read_in_order_and_once() -> None:
    assert navigation.distinct_values(["a,b", "b, c ,"]) == ["a", "b", "c"]
    assert load_fields.parse_levels("1, 4 16") == (1, 4, 16)
    assert side_by_side.parse_prices("1,,2", 4) == [1.0, None, 2.0, None]
    with pytest.raises(RequestError):
        load_fields.parse_levels("four")


def test_merged_documents_keep_every_provenance(studio_home: Workspace) -> None:
    views = [evaluations.show(studio_home, identity) for identity in two(studio_home)]
    whole: Evaluation = side_by_side.merge(views, [view.document for view in views])
    assert [result.name for result in whole.variants][::4] == ["original · A", "original · B"]
    assert "Another CPU" in str(whole.hardware)


def test_a_table_is_uploaded_with_its_columns_named(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A)
    table = b"id,wording,length\n1,What is it?,9\n2,Why?,8\n"
    at.file_uploader(key="evaluate_file").set_value(("mine.csv", table, "text/csv")).run()
    studio.check(at)
    assert workloads.list_saved(studio_home) == {}
    at.button(key="evaluate_columns").click().run()
    assert "id of mine.csv holds numbers and no text" in studio.says(at).replace("`", "").replace("\\", "")
    assert workloads.list_saved(studio_home) == {}

    at = studio.open_page("evaluate", variants=URL_A)
    at.file_uploader(key="evaluate_file").set_value(("mine.csv", table, "text/csv")).run()
    at.selectbox(key="evaluate_column_prompt").select("wording")
    at.selectbox(key="evaluate_column_tokens").select("length")
    at.button(key="evaluate_columns").click().run()
    studio.check(at)
    (remaining,) = workloads.list_saved(studio_home)
    assert param(at, "workload") == remaining
    lines = workloads.list_saved(studio_home)[remaining].read_text().splitlines()
    assert json.loads(lines[0]) == {"prompt": "What is it?", "max_tokens": 9}


def test_a_built_in_workload_is_previewed_by_the_first_variants_tokenizer(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants="starter", workload="question-answering", evaluate_preview="true")
    studio.check(at)
    tokens = at.dataframe[0].value["Tokens"]
    assert tokens.min() >= 500 and tokens.max() <= 1000


def test_requests_by_the_clock_ask_for_a_rate_instead_of_streams(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL_A, evaluate_load="Rate", evaluate_arrivals="at random moments")
    studio.check(at)
    assert [field.key for field in at.text_input if field.key in {"evaluate_rate", "evaluate_concurrency"}] == [
        "evaluate_rate"
    ]
    at.text_input(key="evaluate_rate").set_value("fast").run()
    assert "Requests per second is wrong" in studio.says(at)
    at.text_input(key="evaluate_rate").set_value("0.5, 2, 8").run()
    assert "3 levels" in studio.says(at)
