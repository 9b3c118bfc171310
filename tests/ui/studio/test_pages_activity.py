"""The audit log: what runs where, what ended badly, who changed what; filters, links, and who may read it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from backend.domain.jobs.jobs import Handle, InstallSpec, JobState
from backend.domain.roles import Actor, Role
from backend.service import Workspace
from backend.service.jobs import jobs, running_jobs
from backend.store import leases
from backend.store.tables import ClaimRow, JobRow, SupervisorRow, now
from tests import studio
from tests.helpers.unreadable_rows import command

pytestmark = pytest.mark.without_supervisor

RUNNING, FAILED = ":material/dns: Running", ":material/error: Failed or lost"
UNTIL = now() + timedelta(minutes=1)


def live(home: Workspace, job: str = "j-1", *, heard_s: float = 1.0, owner: str = "ann") -> None:
    """A job that a supervisor of another machine has."""
    handle = Handle(launcher="local", place="process 71").model_dump_json()
    row = JobRow(
        id=job,
        kind="optimize",
        state=JobState.RUNNING,
        title=f"Shrink {job}",
        owner=owner,
        spec="{}",
        supervisor="s-1",
        host="gpu-7",
        home="/far",
        handle=handle,
        started_at=now() - timedelta(minutes=3),
        lease_until=UNTIL,
    )
    heard = now() - timedelta(seconds=heard_s)
    with home.store.session() as session:
        session.merge(
            SupervisorRow(id="s-1", host="gpu-7", home="/far", pid=1, process_started="x", heartbeat_at=heard)
        )
        session.add(row)
        session.flush()
        session.add(ClaimRow(host="gpu-7", device=f"accelerator-{job}", job_id=job))


def failed(home: Workspace, job: str, owner: str = "ann") -> None:
    row = JobRow(
        id=job,
        kind="optimize",
        state=JobState.FAILED,
        title=f"Shrink {job}",
        owner=owner,
        spec="{}",
        error="The disk is full.",
        finished_at=now(),
    )
    with home.store.session() as session:
        session.add(row)


def test_an_empty_home_says_what_will_stand_there(studio_home: Workspace) -> None:
    assert "Nobody has changed" in studio.says(studio.open_page("activity"))
    assert "Nothing is running" in studio.says(studio.open_page("activity", activity_view=RUNNING))
    assert "No job has failed" in studio.says(studio.open_page("activity", activity_view=FAILED))


def test_what_runs_says_where_since_when_and_under_which_lease(studio_home: Workspace) -> None:
    live(studio_home)
    text = studio.says(studio.open_page("activity", activity_view=RUNNING))
    for words in (
        "Shrink j",
        "gpu",
        "accelerator",
        "process 71",
        "/far",
        "for ann",
        "attempt 1",
        "lease",
        "supervisor heard",
    ):
        assert words.replace("/", "\\/") in text or words in text, (words, text)
    assert "No supervisor reports on it" not in text


def test_a_job_whose_supervisor_is_silent_says_so(studio_home: Workspace) -> None:
    live(studio_home, heard_s=leases.STALE_SECONDS + 50)
    assert "No supervisor reports on it" in studio.says(studio.open_page("activity", activity_view=RUNNING))


def test_words_and_people_narrow_it(studio_home: Workspace) -> None:
    live(studio_home)
    live(studio_home, "j-2", owner="bob")
    assert [each.id for each in running_jobs.list_running(studio_home, owner="bob")] == ["j-2"]
    assert [each.id for each in running_jobs.list_running(studio_home, words="GPU-7 j-1")] == ["j-1"]
    assert "No match" in studio.says(studio.open_page("activity", activity_view=RUNNING, activity_words="nowhere"))


def test_what_ended_badly_says_why(studio_home: Workspace) -> None:
    failed(studio_home, "j-1")
    at = studio.open_page("activity", activity_view=FAILED)
    (table,) = at.dataframe
    assert list(table.value["Why"]) == ["The disk is full."] and list(table.value["Owner"]) == ["ann"]


def test_changes_of_others_are_for_admins(studio_home: Workspace) -> None:
    ann = studio_home.acting_as(Actor(name="ann", role=Role.OPERATOR, origin="page"))
    spec = InstallSpec(engine="serve")
    jobs.submit(ann, spec, "Install it")
    jobs.submit(studio_home, spec, "Install it again")
    at = studio.open_page("activity")
    (table,) = at.dataframe
    assert list(table.value["Did"]) == ["submit", "submit"] and set(table.value["Who"]) == {
        "ann",
        studio_home.actor.name,
    }


def test_the_command_tells_the_same(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live(studio_home)
    failed(studio_home, "j-2")
    jobs.submit(studio_home, InstallSpec(engine="serve"), "Install it")
    assert command(studio_home, monkeypatch, "activity", "--json") == 0
    parsed = json.loads(capsys.readouterr().out)
    assert [(j["id"], j["host"], j["devices"]) for j in parsed["running"]] == [("j-1", "gpu-7", ["accelerator-j-1"])]
    assert [(j["id"], j["error"]) for j in parsed["ended_badly"]] == [("j-2", "The disk is full.")]
    assert [c["action"] for c in parsed["changes"]] == ["submit"]
    monkeypatch.setenv("WHETSTONE_ROLE", "viewer")
    monkeypatch.setenv("USER", "someone")
    assert command(studio_home, monkeypatch, "activity") == 0
    message = capsys.readouterr().out
    assert "gpu-7" in message and "Changes: none." in message
