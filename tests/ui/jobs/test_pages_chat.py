"""From an ended job to a chat with its result: one button, and what it says about time and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.needs import kv_cache_tokens
from backend.domain.recipe.recipe import Serving
from backend.hardware import probe
from backend.service import Workspace
from backend.service.jobs import artifacts, jobs
from backend.service.serving import serve
from backend.store import history, queue
from backend.store.tables import now
from tests import studio
from tests.fakes.running import running

CHAT = "job_next_chat"


def ended_job(home: Workspace, files: Path, *, context: int | None = None) -> tuple[str, str]:
    """Return an ended job and its artifact, whose files are those of `files`, with a context of so many tokens."""
    recipe = studio.W8A8.model_copy(update={"serving": Serving(max_model_len=context)})
    job = studio.optimize_job(home, JobState.SUCCEEDED)
    created = studio.artifact(home, job, studio.optimize_spec(home).model, recipe=recipe)
    shutil.copytree(files, Path(artifacts.show(home, created).path) / "model")
    with home.store.session() as session:
        queue.get(session, job.id).result = f'{{"artifact": "{created}"}}'
    return job.id, created


def answer_at(home: Workspace, job_id: str, *answering: tuple[str, str]) -> None:
    """Bring the queued serve job to where its servers answer at these (source, URL)."""
    with home.store.session() as session:
        studio.claim(session, job_id)
    with home.store.session() as session:
        studio.move(session, job_id, JobState.RUNNING)
        history.append(session, job_id, [studio.serving(*answering).model_copy(update={"at": now()})])


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same free memory at every look, whatever other tests take and give back."""
    monkeypatch.setattr(probe, "free_memory", lambda: 16 * 10**9)


def chat_label(at: AppTest) -> str:
    label: str = at.button(key=CHAT).label
    return label


@pytest.mark.with_engines
def test_one_click_leads_from_an_ended_job_to_a_chat_with_both(
    studio_home: Workspace, starter_target: Path, serve_python: Path
) -> None:
    job, created = ended_job(studio_home, starter_target)
    at = studio.open_page("job", id=job)
    assert chat_label(at).startswith("Chat: original beside result · ready in ")
    # 1. The only click.
    at.button(key=CHAT).click().run()
    studio.check(at)
    assert at.title[0].value == "Playground" and at.chat_input[0].disabled
    assert (at.query_params["original"], at.query_params["optimized"]) == ("starter", created)
    (serving,) = jobs.listing(studio_home, kinds=[JobKind.SERVE])
    assert serve.served_sources(studio_home, serving.id) == ["starter", created]
    # 2. Once both answer, a message typed at that address is answered.
    with running("plain_server.py") as first, running("plain_server.py", "--word", "v") as second:
        answer_at(studio_home, serving.id, ("starter", first), (created, second))
        chat = studio.open_page("playground", original="starter", optimized=created)
        chat.chat_input[0].set_value("Why?").run()
        studio.check(chat)
    assert studio.says(chat).count("first token after") == 2
    # 3. From then on the job's page says so, and starts nothing.
    again = studio.open_page("job", id=job)
    assert chat_label(again) == "Chat: original beside result · ready now"
    again.button(key=CHAT).click().run()
    assert again.title[0].value == "Playground" and jobs.count(studio_home, kinds=[JobKind.SERVE]) == 1


def test_the_time_is_that_of_earlier_starts(studio_home: Workspace, starter_target: Path) -> None:
    job, created = ended_job(studio_home, starter_target)
    timed = f'{{"ready_seconds": {{"starter": 14.0, "{created}": 11.2}}}}'
    served = studio.put(studio_home, studio.serve_spec("starter", created), "Serve both", JobState.SUCCEEDED)
    with studio_home.store.session() as session:
        queue.get(session, served.id).result = timed
    at = studio.open_page("job", id=job)
    assert chat_label(at) == "Chat: original beside result · ready in about 25 s"
    assert "as in earlier starts here" in at.button(key=CHAT).help


def test_without_memory_for_two_the_result_is_offered_alone(studio_home: Workspace, starter_target: Path) -> None:
    token = studio.optimize_spec(studio_home).model.kv_bytes_per_token
    cache = probe.free_memory() - serve.VLLM_BYTES * 3 // 2
    context = (cache // 2 // token // kv_cache_tokens.BLOCK - 2) * kv_cache_tokens.BLOCK
    job, _ = ended_job(studio_home, starter_target, context=context)
    at = studio.open_page("job", id=job)
    assert chat_label(at).startswith("Chat with the result alone")
    assert "Without the original: Serving starter and " in studio.says(at) and "GB are free" in studio.says(at)


def test_a_running_measurement_goes_first_and_is_named(studio_home: Workspace, starter_target: Path) -> None:
    job, _ = ended_job(studio_home, starter_target)
    before = studio.optimize_job(studio_home, JobState.RUNNING)
    at = studio.open_page("job", id=job)
    assert chat_label(at) == "Chat: original beside result"
    assert f"The servers start when “{before.title}” has ended." in studio.says(at)
