"""Jobs that yield, as real processes: stopped in order for a person's own job, queued again, and started after it."""

from __future__ import annotations

import os
import signal

import pytest

from backend.domain.jobs.jobs import JobState
from backend.domain.recipe import recipe
from backend.service import Workspace
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.jobs.jobs import JobView
from tests import homes
from tests.held_workers import UNENDING, hold, release
from tests.homes import eventually, kill_supervisor, processes_of, until_ended, until_phase, until_state, worker_pid

QUICK = recipe.read({"name": "ngram", "steps": [{"speculate": {"method": "ngram"}}]})


def submit(workspace: Workspace, chosen: recipe.Recipe, *, yields: bool = False) -> JobView:
    spec = homes.prepare(workspace, "starter", chosen).spec
    return jobs.submit(workspace, spec, chosen.name, yields=yields)


def running(workspace: Workspace) -> JobView:
    """A job that yields, in the middle of its work."""
    job = submit(workspace, UNENDING, yields=True)
    supervisors.ensure_running(workspace)
    return until_phase(workspace, job.id, "recover")


def messages_of(workspace: Workspace, job: JobView) -> str:
    return " ".join(event.message or "" for event in jobs.timeline(workspace, job.id))


def test_it_makes_room_for_ones_own_job_and_comes_back(home: Workspace) -> None:
    demo = running(home)
    own = submit(home, QUICK)
    first = until_ended(home, own.id)
    back = jobs.show(home, demo.id)
    assert first.state is JobState.SUCCEEDED and first.started_at is not None
    assert not back.ended and back.attempt == 2 and back.error is None
    assert "Makes room" in messages_of(home, demo) and "queued again" in messages_of(home, demo)
    again = until_state(home, demo.id, JobState.RUNNING)
    assert again.attempt == 2 and again.started_at is not None and first.finished_at is not None
    assert again.started_at >= first.finished_at
    (created,) = artifacts.listing(home)
    artifacts.verify(home, created.id)


def test_a_supervisor_that_is_stopped_puts_it_back_and_the_next_one_starts_it_again(home: Workspace) -> None:
    demo = running(home)
    assert supervisors.stop(home)
    assert jobs.show(home, demo.id).state is JobState.QUEUED and processes_of(home) == []
    supervisors.ensure_running(home)
    assert until_state(home, demo.id, JobState.RUNNING).attempt == 2


@pytest.mark.campaign
def test_a_supervisor_that_dies_while_it_makes_room_changes_nothing(home: Workspace) -> None:
    demo = running(home)
    worker = hold(home, demo.id, "recover")  # so that it cannot end before the supervisor does
    own = submit(home, QUICK)
    until_state(home, demo.id, JobState.CANCELLING)
    kill_supervisor(home)
    release(worker)
    supervisors.ensure_running(home)
    assert until_ended(home, own.id).state is JobState.SUCCEEDED
    assert until_state(home, demo.id, JobState.RUNNING).attempt == 2


@pytest.mark.campaign
def test_lost_with_its_supervisor_it_starts_again_by_itself(home: Workspace) -> None:
    demo = running(home)
    kill_supervisor(home)
    os.kill(worker_pid(home), signal.SIGKILL)
    eventually("no process left", lambda: processes_of(home) == [])
    supervisors.ensure_running(home)
    eventually("its second attempt", lambda: jobs.show(home, demo.id).attempt == 2)
    until_state(home, demo.id, JobState.RUNNING)


def test_cancelled_it_stays_cancelled(home: Workspace) -> None:
    demo = running(home)
    jobs.cancel(home, demo.id)
    assert until_ended(home, demo.id).state is JobState.CANCELLED
    assert jobs.active(home) == []
