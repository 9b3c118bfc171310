"""Endpoints of this machine on their page: state, figures, samples, buttons, and the form that adds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.jobs.jobs import Event, JobState
from backend.service import Workspace
from backend.service.serving import local_endpoints
from backend.store import leases
from backend.store.serving import endpoint_rows
from tests import studio
from tests.helpers.endpoint_rows import endpoint_spec, put_endpoint
from tests.pricing import no_credentials


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_credentials(monkeypatch, tmp_path)


def put_running(opened: Workspace, phase: str = "loaded", message: str = "Loaded in 0.8 s.") -> None:
    """Put an endpoint whose job runs and has reported its figures."""
    put_endpoint(opened.store, endpoint_spec("chat"))
    counts = {"loads": 2, "restarts": 1, "requests": 12, "failed_requests": 3, "loaded_s": 60.0}
    served = {"starter": {"prompt_tokens": 5.0, "generation_tokens": 40.0}}
    events = [
        Event(kind="progress", data={**counts, "served": served}),
        Event(kind="phase", phase=phase, message=message),
    ]
    job = studio.put(opened, endpoint_spec("chat"), "Endpoint chat", JobState.RUNNING, events=events)
    with opened.store.session() as session:
        row, _ = endpoint_rows.get(session, "chat")
        row.job_id, row.started_at = job.id, leases.clock(session)
        session.add(row)


def test_a_card_shows_state_figures_and_samples(studio_home: Workspace) -> None:
    put_running(studio_home)
    at = studio.open_page("endpoints")
    text = studio.says(at)
    assert "Loaded. It answers." in text and "starter by vllm at `http://127.0.0.1:8701/v1`" in text
    assert "unloaded after 15 idle minutes" in text and "`whetstone gateway` gives all of them" in text
    for words in ("Requests", "12", "3 failed", "1 restarts after a crash", "WHETSTONE_PRICE_PER_HOUR"):
        assert words in text, words
    assert any("http://127.0.0.1:8701/v1" in block.value for block in at.code)


def test_it_is_stopped_started_and_removed(studio_home: Workspace) -> None:
    put_running(studio_home, "idle", "Not loaded: the first request loads it.")
    at = studio.open_page("endpoints")
    assert "Idle. Not loaded: the first request loads it." in studio.says(at)
    at.button(key="endpoints_switch-chat").click().run()
    studio.check(at)
    assert str(local_endpoints.show(studio_home, "chat").state) == "stopping"
    assert at.button(key="endpoints_switch-chat").proto.disabled
    with studio_home.store.session() as session:
        row, _ = endpoint_rows.get(session, "chat")
        row.job_id = None
        session.add(row)
    at = studio.open_page("endpoints")
    at.button(key="endpoints_switch-chat").click().run()
    assert "are no longer at" in at.error[0].value, "its files were never there"
    at.button(key="endpoints_remove-chat").click().run()
    studio.check(at)
    assert local_endpoints.listing(studio_home) == []


def test_a_failed_one_says_why(studio_home: Workspace) -> None:
    put_endpoint(studio_home.store, reason="Port 8701 is in use by another program.")
    text = studio.says(studio.open_page("endpoints"))
    assert "Failed, until you start it again. Port 8701 is in use" in text


@pytest.mark.with_engines
def test_one_is_added_by_the_form(studio_home: Workspace) -> None:
    at = studio.open_page("endpoints")
    at.text_input(key="endpoints_name").input("my model").run()
    at.button(key="endpoints_add").click().run()
    assert "it has 1 to 64 letters, digits" in at.error[0].value
    at.text_input(key="endpoints_name").input("mine").run()
    at.toggle(key="endpoints_keep").set_value(True).run()
    at.button(key="endpoints_add").click().run()
    studio.check(at)
    (added,) = local_endpoints.listing(studio_home)
    assert (added.name, added.source, added.keep_loaded, str(added.state)) == ("mine", "starter", True, "starting")
