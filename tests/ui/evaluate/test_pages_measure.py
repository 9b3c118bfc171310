"""The form of Evaluate: variants and load, what the address keeps of them, and the job that they become."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from app import navigation
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.settings import ASSETS
from backend.store import queue
from tests import studio
from tests.helpers.evaluation_pages import URL_A, URL_B, evaluate_job


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
    assert studio.param(at, "job") == job.id


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
    assert navigation.distinct_values([studio.param(at, "variants")]) == [str(folder)]


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
