"""A search on its page and on the command line: who leads, why the others lost, stop and resume."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from backend.cli.main import app
from backend.domain.errors import NotNow
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.jobs.jobs import EvaluateSpec, JobState
from backend.domain.limits.slo import Slo
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Measure
from backend.domain.tuning.stacks import Stack
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.tuning import records, tunings
from backend.service.tuning.records import SearchRecord, StepRecord
from tests import studio
from tests.helpers.crossing_evaluation import crossing

BASELINE = Stack(weights="original", engine="vllm")
STACKS = (
    Stack(weights="original", engine="llama.cpp"),
    Stack(weights="original", engine="openvino"),
    Stack(weights="original", engine="llama.cpp", settings={"kv_cache_dtype": "q4_0"}),
    Stack(weights="q8_0", engine="llama.cpp"),
)


def put_search(workspace: Workspace, state: JobState, request: TuneRequest | None = None) -> SearchRecord:
    """Store a search whose first round has that job; a succeeded one measured `crossing`."""
    if state is JobState.SUCCEEDED:
        studio.evaluation(workspace, crossing())
    spec = EvaluateSpec(variants=studio.serve_spec("starter").variants, options=EvaluateOptions())
    job = studio.put(workspace, spec, "Evaluate", state, result=json.dumps({"evaluation": "e-1"}))
    step = Measure(kind="screen", stacks=STACKS[:3], blocks=1)
    record = SearchRecord(
        id=records.new_id(),
        request=request or TuneRequest(model="starter", streams=(1, 8), max_kl=0.03),
        title="the lowest price per token for starter",
        model_path="starter",
        owner=workspace.actor.name,
        created_at=records.now(),
        baseline=BASELINE,
        stacks=STACKS,
        steps=(StepRecord(step=step, job=job.id),),
        ended="Every stack was tried." if state is JobState.SUCCEEDED else None,
    )
    records.write(workspace, record)
    return record


def test_a_search_says_who_won_and_why_the_others_lost(studio_home: Workspace) -> None:
    record = put_search(studio_home, JobState.SUCCEEDED)
    at = studio.open_page("tune", id=record.id)
    studio.check(at)
    page_text = studio.says(at).replace("\\", "")
    assert "wins, 1." in page_text and "the best within your limits" in page_text
    (ranking,) = [frame.value for frame in at.dataframe if "Why" in frame.value.columns and "Standing" in frame.value]
    assert ranking["Standing"].tolist()[0] == "winner" and len(ranking) == 4
    assert ranking["Why"].str.contains("x the winner's tokens/s").sum() == 3
    (against,) = [frame.value for frame in at.dataframe if "Against" in frame.value.columns]
    assert against["Winner's outcome"].tolist() == ["win"]
    (chart,) = at.get("plotly_chart")
    assert [trace["name"] for trace in json.loads(chart.proto.spec)["data"]] == ["original", "winner", "within limits"]
    document = json.loads(CliRunner().invoke(app, ["tunings", "show", record.id, "--json"]).output)
    assert document["state"] == "done" and len(document["ranked"]) == 4
    assert document["untried"] == {
        "q8_0 on llama.cpp": "not tried: the budget of 20 minutes was spent on likelier ones"
    }


def test_without_a_stack_within_limits_the_nearest_is_named(studio_home: Workspace) -> None:
    request = TuneRequest(model="starter", streams=(1, 8), limits=Slo(ttft_ms=1.0))
    record = put_search(studio_home, JobState.SUCCEEDED, request)
    page_text = studio.says(studio.open_page("tune", id=record.id)).replace("\\", "")
    assert "No stack meets all limits." in page_text and "nearest to your limits: TTFT p95" in page_text
    printed = CliRunner().invoke(app, ["tunings", "show", record.id]).output
    assert "No stack meets all limits. Nearest:" in printed


def test_a_search_is_stopped_with_its_job_and_resumed_without_it(studio_home: Workspace) -> None:
    record = put_search(studio_home, JobState.QUEUED)
    at = studio.open_page("tune", id=record.id)
    assert "Nothing has been measured yet." in studio.says(at) and at.get("plotly_chart")
    at.button(key="tune_stop").click().run()
    studio.check(at)
    assert "Nothing was measured." in studio.says(at) and not at.get("plotly_chart")
    stopped = tunings.show(studio_home, record.id)
    assert stopped.state == "stopped"
    assert jobs.show(studio_home, str(record.steps[0].job)).error == (
        "Cancelled before it started, by the stop of its search."
    )
    assert set(stopped.untried.values()) == {"not tried yet"}
    damaged = records.folder(studio_home) / "t-0123456789"
    damaged.mkdir()
    (damaged / records.RECORD).write_text("{}")
    assert [view.id for view in tunings.listing(studio_home)] == [record.id]
    with pytest.raises(NotNow, match="it is stopped"):
        tunings.stop(studio_home, record.id)
    assert at.button(key="tune_resume").label == "Resume"
    form = studio.open_page("tune")
    studio.check(form)
    assert f"stopped · {record.created_at:%Y-%m-%d %H:%M:%S} UTC · less than 1 s of 20 min" in studio.says(form)
    resumed = records.read(studio_home, record.id)
    assert resumed.stopped and len(resumed.steps) == 1


def test_searches_are_listed_by_when_they_began(studio_home: Workspace) -> None:
    """And not by what changed last: a look at the older one changes its folder."""
    older, newer = (put_search(studio_home, JobState.QUEUED) for _ in range(2))
    tunings.stop(studio_home, older.id)
    assert [view.id for view in tunings.listing(studio_home)] == [newer.id, older.id]


def test_a_job_that_a_person_cancels_stops_its_search(studio_home: Workspace) -> None:
    record = put_search(studio_home, JobState.CANCELLED)
    assert tunings.advance(studio_home, record.id).state == "stopped"


def test_the_form_names_what_is_missing_and_an_unknown_search_leads_back(studio_home: Workspace) -> None:
    at = studio.open_page("tune")
    studio.check(at)
    assert "No limits: set latency limits" in studio.says(at) or at.error or at.info
    for unknown in ("t-none", "../jobs", f"../{records.FOLDER}/t-0123456789"):
        at = studio.open_page("tune", id=unknown)
        assert f"There is no search {unknown} here" in studio.says(at).replace("\\", "")
