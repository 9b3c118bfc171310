"""Home, Jobs and Job in every state: empty, one, many, running, failed, and what a URL can get wrong."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import streamlit as st

from app.formatting import plain
from app.jobs import job_page
from backend.domain.errors import NotNow
from backend.domain.jobs.jobs import Event, JobState
from backend.service import Workspace
from backend.service.jobs import artifacts, jobs
from backend.service.studio import first_run
from backend.store import history, queue
from tests import simulated, studio

pytestmark = pytest.mark.without_supervisor

MARKUP = "<script>alert(1)</script> **bold** [x](javascript:y)"


def running(home: Workspace) -> str:
    events = [
        Event(kind="phase", phase="load", message="Loading", progress=0.1),
        Event(kind="phase", phase="quantize", message="Quantizing", total=8, unit="layers", progress=0.2, eta_s=50.0),
        Event(kind="warning", message="A layer was left alone."),
        Event(kind="progress", phase="quantize", done=4, total=8, unit="layers", rate=0.5, progress=0.6, eta_s=1200.0),
    ]
    return studio.optimize_job(home, JobState.RUNNING, events=events).id


def succeeded(home: Workspace) -> tuple[str, str]:
    job = studio.optimize_job(home, JobState.SUCCEEDED)
    artifact_id = studio.artifact(home, job, studio.optimize_spec(home).model)
    result = {
        "artifact": artifact_id,
        "bytes_before": 22_000_000,
        "bytes_after": 13_000_000,
        "seconds": 71.0,
        "peak_rss_bytes": 700_000_000,
        "quality": {
            "perplexity_before": 61.8,
            "perplexity_after": 61.9,
            "kl_mean": 0.0004,
            "kl_ci95": [0.0003, 0.0005],
        },
    }
    with home.store.session() as session:
        queue.get(session, job.id).result = json.dumps(result)
    return job.id, artifact_id


def test_home_on_the_first_visit_offers_three_ways(studio_home: Workspace) -> None:
    at = studio.open_page("home")
    text = studio.says(at)
    assert "Running" not in text.splitlines() and "No verdict yet." in text
    assert "Recorded** on AMD EPYC, 2 cores on 20" in text and "not on yours" in text
    assert "The demo" in text and "A real language model" in text and "The catalog" in text and "Your own model" in text
    assert "No supervisor is running" in at.warning[0].value


def test_no_banner_while_a_supervisor_lives(studio_home: Workspace) -> None:
    studio.supervisor(studio_home)
    assert not studio.open_page("home").warning


@pytest.mark.parametrize("page", ["evaluate", "build", "catalog", "train", "jobs"])
def test_fields_stay_where_they_are_when_the_banner_goes(studio_home: Workspace, page: str) -> None:
    """Streamlit tells containers apart by their number: one more above, and a field forgot what was being typed."""
    at = studio.open_page(page)
    places = list(at.main.children)
    studio.supervisor(studio_home)
    at.run()
    assert not [each for each in at.warning if "No supervisor" in each.value] and list(at.main.children) == places


def test_home_shows_running_jobs_and_the_latest_verdicts(studio_home: Workspace) -> None:
    running(studio_home)
    studio.evaluation(studio_home, simulated.evaluation())
    text = studio.says(studio.open_page("home"))
    assert "Optimize starter with w8a8" in text and "60%" in text and re.search(r"about (19|20) min left", text)
    assert (
        "Recorded" not in text
        and "w8a8-draft** is 2." in text
        and "Measured 2026-01-02 03:04:05 UTC on Simulated CPU" in text
    )


def test_a_null_verdict_says_what_it_rests_on_and_what_is_next(studio_home: Workspace) -> None:
    studio.evaluation(studio_home, simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.0), levels=(1,)))
    at = studio.open_page("home")
    assert "Nothing is faster than" in studio.says(at) and "The widest interval" in studio.says(at)
    assert "Try another recipe" in studio.links(at)


def test_a_double_click_on_the_demo_is_one_job(studio_home: Workspace, offline: None) -> None:
    at = studio.open_page("home")
    at.button(key="home_demo").click().run()
    studio.check(at)
    assert "optimize starter with w8a8" in at.title[0].value
    at.switch_page("../pages/home.py").run()
    assert not [button for button in at.button if button.key == "home_demo"] and "Watch the job" in studio.links(at)
    with pytest.raises(NotNow):
        first_run.start(studio_home)
    assert jobs.count(studio_home) == 1


def test_jobs_when_empty_say_what_will_stand_there(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("jobs"))
    assert "Nothing is running" in text and "No job has ended yet." in text


def test_the_queue_stands_in_its_order_and_moves_to_the_front(studio_home: Workspace) -> None:
    first, second = studio.install_job(studio_home).id, studio.install_job(studio_home, title="The second").id
    at = studio.open_page("jobs")
    assert "number 1 in the queue" in studio.says(at) and "number 2 in the queue" in studio.says(at)
    at.button(key=f"jobs_move-to-front-{second}").click().run()
    studio.check(at)
    assert [job.id for job in jobs.active(studio_home)] == [second, first]


def test_cancelling_asks_once_more(studio_home: Workspace) -> None:
    job = studio.install_job(studio_home).id
    at = studio.open_page("jobs")
    assert "Stop this job?" in studio.says(at)
    at.button(key=f"jobs_cancel-{job}").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job).state is JobState.CANCELLED


@pytest.mark.parametrize("page", ["home", "jobs", "job"])
def test_cancelling_is_asked_for_on_every_page_that_offers_it(studio_home: Workspace, page: str) -> None:
    job = studio.install_job(studio_home, JobState.RUNNING)
    at = studio.open_page(page, **({"id": job.id} if page == "job" else {}))
    assert "Stop this job?" in studio.says(at)
    assert [button.label for button in at.button if button.key and button.key.endswith(f"cancel-{job.id}")] == [
        "Yes, cancel it"
    ]
    assert not [button for button in at.button if button.label == "Cancel"]


def test_ones_own_cancel_is_no_error(studio_home: Workspace) -> None:
    for state, kind in ((JobState.CANCELLED, "info"), (JobState.FAILED, "error")):
        job = studio.install_job(studio_home, state, error="It ended before its time.")
        at = studio.open_page("job", id=job.id)
        boxes = {name: [box.value for box in getattr(at, name)] for name in ("info", "error")}
        assert boxes.pop(kind)[0] == "It ended before its time." and not any(boxes.values())


def test_a_ruined_result_is_a_red_box(studio_home: Workspace) -> None:
    job, _ = succeeded(studio_home)
    assert not studio.open_page("job", id=job).error
    ruined = "The result is ruined: perplexity goes from 7.6 to 39.0."
    with studio_home.store.session() as session:
        row = queue.get(session, job)
        result = json.loads(row.result or "")
        row.result = json.dumps(result | {"quality": result["quality"] | {"below_floor": ruined}})
    assert [box.value for box in studio.open_page("job", id=job).error] == [plain(ruined)]


def test_pages_write_times_in_one_form(studio_home: Workspace) -> None:
    """Three forms of a date. Without a browser the zone is UTC, and named so."""
    job = studio.optimize_job(
        studio_home, JobState.SUCCEEDED, started_at=datetime.now(UTC), finished_at=datetime.now(UTC)
    )
    identity = studio.evaluation(studio_home, simulated.evaluation())
    places = {"jobs": {}, "job": {"id": job.id}, "evaluate": {"id": identity}, "compare": {"ids": identity}, "home": {}}
    for page, query in places.items():
        at = studio.open_page(page, **query)
        tables = " ".join(frame.value.to_csv() for frame in at.dataframe)
        dates = re.findall(r"20\d\d-\d\d-\d\d\S*(?: \S+ \S{3})?", f"{studio.says(at)} {tables}")
        odd = [result for result in dates if not re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", result)]
        assert not odd, (page, odd)


def test_a_failed_job_says_why_and_runs_again(studio_home: Workspace) -> None:
    job = studio.install_job(studio_home, JobState.FAILED, error="The disk filled up.").id
    at = studio.open_page("jobs")
    assert "The disk filled up." in studio.says(at)
    menu = at.get("menu_button")[0]
    menu.click("Retry").run()
    studio.check(at)
    assert [result.parent for result in jobs.active(studio_home)] == [job]


@pytest.fixture
def many(studio_home: Workspace) -> Workspace:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    with studio_home.store.session() as session:
        for number in range(45):
            row = studio.job_row(number, JobState.FAILED if number % 9 == 0 else JobState.SUCCEEDED)
            row.created_at = begun + timedelta(minutes=number)
            session.add(row)
    return studio_home


def test_pages_and_filters_come_from_the_url(many: Workspace) -> None:
    assert "1 to 20 of 45" in studio.says(studio.open_page("jobs"))
    assert "41 to 45 of 45" in studio.says(studio.open_page("jobs", jobs_page="3"))
    failed = studio.says(studio.open_page("jobs", jobs_state=["failed"]))
    assert "1 to 5 of 5" in failed and "succeeded" not in failed
    assert "Job number 17" in studio.says(studio.open_page("jobs", jobs_words="NUMBER 17"))
    assert "No ended job matches" in studio.says(studio.open_page("jobs", jobs_words="100%_"))


@pytest.mark.parametrize(
    "query", [{"jobs_page": "999"}, {"jobs_page": "x"}, {"jobs_state": "<b>"}, {"jobs_kind": "nothing"}]
)
def test_a_url_with_nonsense_shows_the_jobs(many: Workspace, query: dict[str, str]) -> None:
    assert "of 45, newest first" in studio.says(studio.open_page("jobs", **query))


def test_a_filter_goes_back_to_the_first_page(many: Workspace) -> None:
    at = studio.open_page("jobs", jobs_page="3")
    at.text_input(key="jobs_words").set_value("number").run()
    studio.check(at)
    assert "1 to 20 of 45" in studio.says(at)


@pytest.mark.parametrize("required", ["j-unknown", "../../etc/passwd", MARKUP, "é" * 5000])
def test_an_unknown_job_is_one_sentence(studio_home: Workspace, required: str) -> None:
    at = studio.open_page("job", id=required)
    assert len(at.error) == 1 and "There is no job" in at.error[0].value
    assert "All jobs" in studio.links(at)


def test_no_job_in_the_url_leads_to_the_list(studio_home: Workspace) -> None:
    at = studio.open_page("job")
    assert "Choose a job" in at.info[0].value and studio.links(at) == ["All jobs"]


def test_a_running_job_shows_phases_bar_rate_and_time_left(studio_home: Workspace) -> None:
    at = studio.open_page("job", id=running(studio_home))
    text = studio.says(at)
    assert (
        "60%" in text
        and "4 of 8 layers, 0.5 layers/s" in text
        and re.search(r"Time left about (19|20) min", text)
        and "the rate stays the same" in text
    )
    assert "A layer was left alone." in at.warning[-1].value and "Last event" in text
    assert list(at.dataframe[0].value["Phase"]) == ["Loading", "Quantizing"]
    assert list(at.dataframe[0].value["State"]) == ["ended", "running"]
    assert "The log is empty." in text


def test_a_failed_job_tells_its_error_before_all_else(studio_home: Workspace) -> None:
    job = studio.install_job(studio_home, JobState.FAILED, error=f"It broke: {MARKUP}").id
    folder = studio_home.settings.jobs / job / "1"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("collecting\nboom: no space\n")
    at = studio.open_page("job", id=job)
    assert "It broke" in at.error[0].value and "\\<script\\>" in at.error[0].value
    assert "boom: no space" in at.code[0].value
    at.text_input(key="job_log-words").set_value("BOOM").run()
    assert at.code[0].value == "boom: no space"
    next(button for button in at.button if button.label == "Retry").click().run()
    studio.check(at)
    assert jobs.active(studio_home)[0].parent == job


def test_a_succeeded_job_shows_its_result_and_the_next_step(studio_home: Workspace) -> None:
    job, created = succeeded(studio_home)
    at = studio.open_page("job", id=job)
    text = studio.says(at)
    assert (
        "Weights 13 MB" in text
        and "-41% from 22 MB" in text
        and "Mean KL divergence 0.000400" in text
        and "Peak memory 700 MB" in text
    )
    assert created in text and len(at.get("plotly_chart")) == 1
    assert [tile.label for tile in at.metric][:4] == ["Weights", "Peak memory", "Run time", "Attempt"]
    assert [tab.label for tab in at.tabs][-3:] == ["Log", "Resources", "Details"]
    assert "Evaluate against the original" in [button.label for button in at.button]


def test_a_succeeded_job_says_what_to_do_with_its_result(studio_home: Workspace) -> None:
    job, created = succeeded(studio_home)
    folder = Path(artifacts.show(studio_home, created).path) / "model"
    folder.mkdir(parents=True)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    at = studio.open_page("job", id=job)
    assert "Serve" in [button.label for button in at.button]
    primary = [button.label for button in at.button if button.proto.type == "primary"]
    assert primary == ["Evaluate against the original"], "one primary button"
    assert not [label for label in studio.links(at) if label.startswith("Evaluate")], "offered in one place"
    assert "Download (13 MB)" in [each.proto.label for each in at.get("download_button")]
    copied = "\n".join(block.value for block in at.code)
    assert {block.language for block in at.code} == {"plaintext"}, "the colours of highlighting are too pale"
    assert (
        f"vllm serve {folder}" in copied
        and "/v1/chat/completions" in copied
        and "client.chat.completions.create" in copied
    )
    at.button(key="job_next_serve").click().run()
    studio.check(at)
    assert "are no longer at" in at.error[0].value and not jobs.active(studio_home)


def test_a_result_that_was_deleted_is_said(studio_home: Workspace) -> None:
    job, created = succeeded(studio_home)
    with studio_home.store.session() as session:
        session.delete(history.get_artifact(session, created))
    assert "has been deleted" in studio.says(studio.open_page("job", id=job))


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_page(studio_home: Workspace, state: JobState) -> None:
    assert str(state) in studio.says(studio.open_page("job", id=studio.install_job(studio_home, state).id))


def test_a_title_with_markup_stays_words(studio_home: Workspace) -> None:
    studio.install_job(studio_home, JobState.FAILED, title=MARKUP)
    at = studio.open_page("jobs")
    assert any("\\<script\\>" in element.value and "\\*\\*bold" in element.value for element in at.markdown)


def test_a_running_job_shows_the_range_of_what_is_left_and_what_it_uses(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.RUNNING)
    assert job.started_at is not None
    begun = datetime.now(UTC) - timedelta(seconds=5000)
    paces = ((0, 0.1), (500, 0.2), (2500, 0.3), (3500, 0.4), (5000, 0.5))
    events = [
        Event(kind="progress", phase="quantize", at=begun + timedelta(seconds=at), progress=progress)
        for at, progress in paces
    ]
    events.append(
        Event(kind="resource", at=begun + timedelta(seconds=5), data={"rss_bytes": 700_000_000, "cpu_percent": 150.0})
    )
    with studio_home.store.session() as session:
        row = queue.get(session, job.id)
        row.started_at = begun
        history.append(session, row.id, events)
    at = studio.open_page("job", id=job.id)
    text = studio.says(at)
    assert "Time left 0.5–3 h" in text and "from the spread of its last 4 rates in this phase" in text
    assert len(at.get("plotly_chart")) == 1 and "At most 700 MB of memory and on average 150 % of one core" in text


def test_a_running_job_shows_what_it_has_cost_so_far(studio_home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    job = studio.install_job(studio_home, JobState.RUNNING, started_at=datetime.now(UTC) - timedelta(hours=1000))
    assert "Cost so far" not in studio.says(studio.open_page("job", id=job.id))
    monkeypatch.setenv("WHETSTONE_PRICE_PER_HOUR", "3")
    st.cache_resource.clear()
    text = studio.says(studio.open_page("job", id=job.id))
    assert "Cost so far 3,000 USD" in text and "this attempt, at 3.00 USD per hour" in text


def test_a_job_without_a_rate_says_that_its_end_is_unknown(studio_home: Workspace) -> None:
    events = [Event(kind="phase", phase="load", message="Loading", progress=0.02, eta_s=900.0)]
    at = studio.open_page("job", id=studio.optimize_job(studio_home, JobState.RUNNING, events=events).id)
    text = studio.says(at)
    assert "Time left unknown" in text and "900" not in text and "15 min" not in text


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.LOST])
def test_the_next_step_of_a_job_that_did_not_succeed_is_to_resume_it(studio_home: Workspace, state: JobState) -> None:
    job = studio.optimize_job(studio_home, state, error="It ended: see `log`.")
    at = studio.open_page("job", id=job.id)
    primary = [button for button in at.button if button.proto.type == "primary"]
    assert [button.label for button in primary] == ["Resume"]
    assert {"Retry", "Clone"} <= {button.label for button in at.button}
    assert "Change the recipe" in studio.links(at)
    primary[0].click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).state is JobState.QUEUED


def test_what_a_cancelled_job_keeps_is_shown_and_can_be_dropped(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.CANCELLED)
    assert "of saved work" not in studio.says(studio.open_page("job", id=job.id))
    folder = studio_home.settings.jobs / job.id / "1" / "resume"
    folder.mkdir(parents=True)
    (folder / "part-00000.safetensors").write_bytes(b"1" * 40_960)
    at = studio.open_page("job", id=job.id)
    assert "It has 41 kB of saved work" in studio.says(at)
    at.button(key="job-drop").click().run()
    studio.check(at)
    assert "of saved work" not in studio.says(at) and not folder.exists()


def test_the_specification_can_be_copied_and_downloaded(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.FAILED)
    at = studio.open_page("job", id=job.id)
    assert json.loads(at.code[-1].value) == jobs.specification(studio_home, job.id)
    assert [button.proto.label for button in at.get("download_button")] == ["Download", "Download"]


def test_what_a_person_wrote_into_an_error_stays_words(studio_home: Workspace) -> None:
    job = studio.install_job(studio_home, JobState.FAILED, error=f"`x` and :material/home: and {MARKUP}")
    shown = studio.open_page("job", id=job.id).error[0].value
    assert shown.startswith("`x` and ") and ":material/home" not in shown and "\\<script\\>" in shown


def test_a_job_that_ends_while_its_page_is_drawn_is_shown_as_ended(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = studio.install_job(studio_home, JobState.RUNNING)
    draw = job_page.show_progress

    def end_and_draw(opened: Workspace, job_id: str) -> str:
        with studio_home.store.session() as session:
            row = queue.get(session, job_id)
            row.state, row.finished_at = JobState.FAILED, row.started_at
        return draw(opened, job_id)

    monkeypatch.setattr(job_page, "show_progress", end_and_draw)
    at = studio.open_page("job", id=job.id)
    labels = [button.label for button in at.button]
    assert "Retry" in labels and "Cancel" not in labels
