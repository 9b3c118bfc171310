"""An evaluation that runs, failed or is done, and the list of earlier ones. Figures are simulated, stores are real."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from streamlit.testing.v1 import AppTest

from app import charts, navigation
from app.results import measurement_conditions
from backend.domain.errors import NotFound
from backend.domain.jobs.jobs import Event, JobState
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.models import models
from backend.store import history
from tests import simulated, studio
from tests.helpers.evaluation_pages import URL_A, URL_B, evaluate_job, two_evaluations


def point(variant: str, concurrency: int, rate: float | None) -> Event:
    return Event(
        kind="point", data={"variant": variant, "concurrency": concurrency, "block": 0, "output_tokens_per_s": rate}
    )


def test_a_running_evaluation_draws_its_points_as_approximate(studio_home: Workspace) -> None:
    events = [point(URL_A, 1, 20.0), point(URL_B, 1, 30.0), point(URL_A, 1, 22.0), point(URL_B, 4, None)]
    job = evaluate_job(studio_home, JobState.RUNNING, events=events, progress=0.4, message="Measuring")
    assert job.started_at is not None
    earlier = point(URL_A, 1, 99.0).model_copy(update={"at": job.started_at - timedelta(hours=1)})
    with studio_home.store.session() as session:
        history.append(session, job.id, [earlier])
    at = studio.open_page("evaluate", job=job.id)
    assert studio.headings(at) == [charts.TITLE]
    assert "4 runs so far. Approximate" in studio.says(at)
    at.button(key=f"evaluate_cancel-{job.id}").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).cancel_requested


def test_a_queued_evaluation_waits_for_its_first_point(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", job=evaluate_job(studio_home).id)
    assert studio.headings(at) == [charts.TITLE]
    assert "0 runs so far" in studio.says(at)


def test_a_failed_evaluation_says_why_and_can_be_measured_again(studio_home: Workspace) -> None:
    job = evaluate_job(studio_home, JobState.FAILED, error="Cannot reach http://127.0.0.1:1.")
    at = studio.open_page("evaluate", job=job.id)
    assert "Cannot reach" in studio.says(at)
    at.button(key="evaluate_measure-again").click().run()
    studio.check(at)
    assert jobs.listing(studio_home)[0].parent == job.id
    assert studio.param(at, "job") == jobs.listing(studio_home)[0].id


def test_a_succeeded_job_leads_to_its_evaluation(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    job = evaluate_job(studio_home, JobState.SUCCEEDED, result=json.dumps({"evaluation": identity}))
    at = studio.open_page("evaluate", job=job.id)
    assert studio.param(at, "id") == identity
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
    assert "Speed per user against total throughput" in studio.headings(at)[0]
    assert len(studio.headings(at)) == 4
    assert any("Time to first token (ms)" in frame.value.columns for frame in at.dataframe)
    files = [button.proto.label for button in at.get("download_button")]
    assert [label for label in files if label != "CSV"] == ["Report (HTML)", "Figures (JSON)", "Table (CSV)"]
    assert files.count("CSV") == len(studio.headings(at))
    assert all("is better: at concurrency 16" in chart.proto.alt for chart in at.get("plotly_chart")[2:4])
    assert links_to(at, "Compare")


def test_measuring_again_writes_the_address_that_a_refresh_opens(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, simulated.evaluation()), slo_ttft="5.0")
    (again,) = [button for button in at.button if button.label == "Measure again"]
    again.click().run()
    studio.check(at)
    assert navigation.distinct_values([studio.param(at, "variants")]) == ["original", "w8a8", "draft", "w8a8-draft"]
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
    assert studio.param(at, "variants") == f"{URL_A}/v1#m"
    assert field.set_value and list(field.raw_values) == ["m at 127.0.0.1:1"]


def test_evaluate_lists_past_evaluations_before_the_form(studio_home: Workspace) -> None:
    two_evaluations(studio_home)
    at = studio.open_page("evaluate")
    assert [head.value for head in at.subheader] == ["Past evaluations"] and not at.multiselect
    at.button(key="evaluate_new").click().run()
    studio.check(at)
    assert studio.param(at, "new") == "true" and at.multiselect(key="evaluate_variants").value == []
    assert studio.open_page("evaluate", evaluate_concurrency="1").multiselect(key="evaluate_variants")


def test_a_new_evaluation_begins_with_the_newest_artifact_and_its_model(studio_home: Workspace) -> None:
    artifact_id = studio.artifact(studio_home, studio.optimize_job(studio_home), models.resolve(studio_home, "starter"))
    at = studio.open_page("evaluate")
    assert at.multiselect(key="evaluate_variants").value == ["starter", artifact_id]
    two_evaluations(studio_home)
    at = studio.open_page("evaluate")
    at.button(key="evaluate_new").click().run()
    assert at.multiselect(key="evaluate_variants").value == ["starter", artifact_id]


def test_the_live_chart_takes_the_mean_of_the_runs() -> None:
    points = [point("a", 1, rate).data for rate in (10.0, 20.0)] + [point("<b>b</b>", 4, 5.0).data]
    figure = charts.live_throughput(points, ["a"], "dark")
    assert figure["data"][0]["y"] == [15.0]
    assert figure["data"][1]["name"] == "&lt;b&gt;b&lt;/b&gt;"
    assert "mean of 2 runs" in figure["data"][0]["hovertext"][0]
