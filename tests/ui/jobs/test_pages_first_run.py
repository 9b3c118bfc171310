"""Home with the demo of a first run, and every page of a demonstration, which is labelled and cannot be changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ReadOnly
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.evaluations import evaluations, workloads
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.studio import demo_export, first_run
from backend.store import queue
from tests import simulated, studio

pytestmark = pytest.mark.usefixtures("offline")
SENTENCE = "nothing can be started or changed here"


def end(
    home: Workspace, job: JobView, state: JobState, error: str | None = None, result: dict[str, Any] | None = None
) -> None:
    artifact_id = studio.artifact(home, job, studio.optimize_spec(home).model)
    with home.store.session() as session:
        studio.claim(session, job.id)
    with home.store.session() as session:
        studio.move(session, job.id, JobState.RUNNING)
        studio.move(session, job.id, state, error=error, result=json.dumps(result or {"artifact": artifact_id}))


def begun(home: Workspace) -> JobView:
    job = first_run.begin(home)
    assert job is not None
    return job


def test_home_says_what_the_demo_is_and_stops_it(studio_home: Workspace) -> None:
    job = begun(studio_home)
    at = studio.open_page("home")
    text = studio.says(at)
    assert "Demo, step 1 of 4" in text and "because this is a first run" in text and "Your own jobs go first" in text
    assert "Demo: optimize starter with w8a8" in text
    at.button(key="home_stop-demo").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).state is JobState.CANCELLED
    assert "because this is a first run" not in studio.says(studio.open_page("home"))


def test_the_way_to_start_leads_on_whatever_came_of_it(studio_home: Workspace) -> None:
    job = begun(studio_home)
    assert "Watch the job" in studio.links(studio.open_page("home"))
    first_run.stop(studio_home)
    at = studio.open_page("home")
    assert at.button(key="home_demo").label == "Continue the demo"
    at.button(key="home_demo").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).state is JobState.QUEUED and "optimize starter with w8a8" in at.title[0].value
    assert not jobs.show(studio_home, job.id).yields, "asked for by a person"


def test_done_its_way_leads_to_what_came_of_it(studio_home: Workspace) -> None:
    for _ in range(3):
        end(studio_home, begun(studio_home), JobState.SUCCEEDED)
    last = first_run.advance(studio_home)
    assert last is not None
    identity = studio.evaluation(studio_home, simulated.evaluation())
    end(studio_home, last, JobState.SUCCEEDED, result={"evaluation": identity})
    at = studio.open_page("home")
    assert "View results" in studio.links(at) and "It runs on the bundled starter model" in studio.says(at)
    assert not [button for button in at.button if button.key == "home_demo"]


def test_ones_own_model_leads_to_import(studio_home: Workspace) -> None:
    assert "Import a model" in studio.links(studio.open_page("home"))


def test_cancelling_its_card_stops_it_too(studio_home: Workspace) -> None:
    job = begun(studio_home)
    at = studio.open_page("home")
    at.button(key=f"home_cancel-{job.id}").click().run()
    studio.check(at)
    assert (
        first_run.advance(studio_home) is None and "Running" not in studio.says(studio.open_page("home")).splitlines()
    )


def test_behind_ones_own_job_it_can_be_made_ones_own(studio_home: Workspace) -> None:
    job, own = begun(studio_home), studio.install_job(studio_home)
    at = studio.open_page("home")
    assert "number 2 in the queue" in studio.says(at)
    at.button(key=f"home_move-to-front-{job.id}").click().run()
    studio.check(at)
    assert [result.id for result in jobs.active(studio_home)] == [job.id, own.id] and not jobs.show(
        studio_home, job.id
    ).yields


def test_making_room_is_said_in_words(studio_home: Workspace) -> None:
    job = begun(studio_home)
    with studio_home.store.session() as session:
        studio.claim(session, job.id)
    with studio_home.store.session() as session:
        queue.make_room(session, queue.get(session, job.id))
    assert "making room" in studio.says(studio.open_page("home"))


def test_what_it_waits_for_is_said_with_the_way_there(studio_home: Workspace) -> None:
    for _ in range(3):
        job = first_run.advance(studio_home)
        assert job is not None
        end(studio_home, job, JobState.SUCCEEDED)
    at = studio.open_page("home")
    assert "step 4 of 4" in studio.says(at) and "The next step waits" in at.warning[0].value
    assert "whetstone engines install serve" in at.warning[0].value and "Engines and disk" in studio.links(at)


def test_the_search_for_its_model_and_a_failed_engine_are_said(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "is_alive", lambda *_, **__: True)
    at = studio.open_page("home")
    assert "It looks where" in studio.says(at) and not [button for button in at.button if button.key == "home_demo"]
    studio.install_job(studio_home, JobState.FAILED, error="The disk filled up.")
    assert "vLLM could not be installed: The disk filled up." in studio.says(studio.open_page("home"))


def test_a_failed_demo_is_told_until_something_else_was_started(studio_home: Workspace) -> None:
    end(studio_home, begun(studio_home), JobState.FAILED, "The disk filled up.")
    text = studio.says(studio.open_page("home"))
    assert "The demo ended" in text and "The disk filled up." in text
    studio.install_job(studio_home)
    assert "The demo ended" not in studio.says(studio.open_page("home"))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all, which none of them can change."""
    return demo_export.seed(tmp_path_factory.mktemp("shown")).settings.home


@pytest.fixture
def shown(seeded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    with studio.home(seeded, monkeypatch) as opened:
        assert opened.read_only
        yield opened


def pages(shown: Workspace) -> dict[str, dict[str, str]]:
    created, measured = artifacts.listing(shown)[0].id, evaluations.list_titles(shown)[0].id
    optimized, evaluated = (jobs.listing(shown, kinds=[kind])[0].id for kind in ("optimize", "evaluate"))
    return {
        "home": {},
        "catalog": {},
        "import": {},
        "model": {"id": "starter"},
        "build": {"model": "starter"},
        "jobs": {},
        "playground": {},
        "hardware": {},
        "compare": {"ids": measured},
        "evaluate": {"variants": f"starter,{created}"},
        "job": {"id": optimized},
        "evaluate ": {"id": measured},
        "job ": {"id": evaluated},
    }


PAGES = (
    "home",
    "catalog",
    "import",
    "model",
    "build",
    "jobs",
    "playground",
    "hardware",
    "compare",
    "evaluate",
    "job",
    "evaluate ",
    "job ",
)


VERBS = {
    "Run the demo",
    "Start it",
    "Start both",
    "Install",
    "Reinstall",
    "Yes, remove it",
    "Clone",
    "Retry",
    "Resume",
    "Evaluate",
    "Run again",
}
"""What starts or changes something; other buttons only lead somewhere."""


SAYS_WHY = {"home": "Run the demo", "hardware": "nstall", "playground": "Start", "job": "Clone", "jobs": "Run again"}
"""Of a page the words on buttons that are disabled and say why."""


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_labelled_and_offers_to_start_nothing(shown: Workspace, page: str) -> None:
    at = studio.open_page(page.strip(), **pages(shown)[page])
    (label,) = [
        each
        for each in at.caption
        if "Demonstration, nothing can be started: measured on " in each.value.replace("\\", "")
    ]
    assert label.proto.help.startswith("Nothing runs here")
    assert not any("No supervisor" in warning.value for warning in at.warning)
    buttons = [*at.button, *at.get("menu_button")]
    assert all(button.disabled for button in buttons if button.label in VERBS)
    if page in SAYS_WHY:
        results = [button for button in buttons if SAYS_WHY[page] in button.label]
        assert results and all(button.disabled and SENTENCE in button.help for button in results)


def test_an_upload_is_refused_in_one_sentence(shown: Workspace) -> None:
    at = studio.open_page("evaluate", new="true")
    (uploader,) = at.get("file_uploader")[:1]
    assert uploader.proto.disabled and SENTENCE in uploader.proto.help
    with pytest.raises(ReadOnly, match=SENTENCE):
        workloads.save(shown, "mine.jsonl", b'{"prompt": "hello"}\n')
    assert not (shown.settings.home / "workloads").exists()


def test_a_folder_cannot_be_imported_and_the_button_says_why(
    shown: Workspace, starter_draft: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(starter_draft, folder)
    at = studio.open_page("import", import_folder=str(folder))
    studio.check(at)
    assert at.button(key="import_submit").disabled and SENTENCE in at.button(key="import_submit").help
    with pytest.raises(ReadOnly, match=SENTENCE):
        models.remember(shown, str(folder))
    assert not any(known.present for known in models.list_remembered(shown))
    text = studio.says(at)
    assert "its weights are not part of this demonstration" in text and str(shown.settings.home) not in text


def test_the_forms_say_why_nothing_can_be_submitted(shown: Workspace) -> None:
    for page in ("build", "evaluate"):
        at = studio.open_page(page, **pages(shown)[page])
        assert any(SENTENCE in notice.value for notice in at.info) and not at.error, page
        assert at.button(key={"build": "build_optimize", "evaluate": "evaluate_submit"}[page]).disabled


def test_an_artifact_says_that_its_files_are_not_there(shown: Workspace) -> None:
    assert "its files are not part of this demonstration" in studio.says(studio.open_page("job", **pages(shown)["job"]))
