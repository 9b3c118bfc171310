"""The check of a measurement on the Evaluate page: the baseline against itself, asked for, submitted and measured
again."""

from __future__ import annotations

from app import navigation
from app.evaluate import form
from backend.service import Workspace
from backend.service.jobs import jobs
from tests import simulated, studio

URL = "http://127.0.0.1:1"


def test_the_check_measures_the_baseline_under_two_names(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=f"{URL},http://127.0.0.1:2")
    at.checkbox(key="evaluate_twice").check().run()
    assert "3 variants x 2 levels" in studio.says(at)
    assert f"whetstone evaluate {URL} {URL} http://127.0.0.1:2" in studio.says(at)
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    (job,) = jobs.listing(studio_home)
    assert [v["name"] for v in jobs.specification(studio_home, job.id)["variants"]] == [
        "127.0.0.1:1",
        "127.0.0.1:1 (2)",
        "127.0.0.1:2",
    ]


def test_a_search_has_no_such_check_since_it_gives_no_verdict(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants=URL, evaluate_load="Search")
    assert "evaluate_twice" not in [box.key for box in at.checkbox]


def test_without_a_variant_there_is_nothing_to_measure_twice() -> None:
    assert form.measured_sources([], {"twice": True}) == []
    assert form.measured_sources(["a", "b"], {"twice": False}) == ["a", "b"]


def test_measuring_again_asks_for_the_check_again() -> None:
    once = simulated.evaluation()
    first = once.variants[0]
    twice = once.model_copy(update={"variants": [first, first, *once.variants[1:]]})
    assert "evaluate_twice" not in form.repeat_parameters(once)
    assert form.repeat_parameters(twice)["evaluate_twice"] == "true"
    assert navigation.distinct_values([form.repeat_parameters(twice)["variants"]])[:1] == [first.variant.source]
