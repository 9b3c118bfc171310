"""What `doctor` says of supervisors, jobs, logs and metrics."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.machines import doctor
from backend.store import leases
from backend.store.tables import JobRow, SupervisorRow, now
from tests.homes import open_home


def findings_on(workspace: Workspace, subject: str) -> list[doctor.Finding]:
    return [each for each in doctor.examine(workspace) if each.subject == subject]


def heard(home: Workspace, seconds: float) -> None:
    row = SupervisorRow(
        id="s-1", host="far", home="/h", pid=1, process_started="x", heartbeat_at=now() - timedelta(seconds=seconds)
    )
    with home.store.session() as session:
        session.merge(row)


def test_a_home_in_which_nothing_runs_is_well(home: Workspace) -> None:
    assert [each.finding for each in findings_on(home, "Jobs")] == ["none yet"]
    assert findings_on(home, "Supervisor")[0].finding.startswith("not running")
    assert findings_on(home, "Metrics")[0].finding.startswith("off")


def test_jobs_are_counted_and_the_longest_wait_is_told(home: Workspace) -> None:
    for number, state in enumerate((JobState.QUEUED, JobState.QUEUED, JobState.FAILED)):
        row = JobRow(
            id=f"j-{number}",
            kind="optimize",
            state=state,
            title="t",
            owner="t",
            spec="{}",
            created_at=now() - timedelta(seconds=90),
        )
        with home.store.session() as session:
            session.add(row)
    assert findings_on(home, "Jobs")[0].finding == "2 queued, 1 failed; the longest-waiting for 90 s"


def test_a_supervisor_that_is_silent_with_jobs_is_a_warning(home: Workspace) -> None:
    heard(home, 1)
    assert "running: s-1 on far (/h)" in findings_on(home, "Supervisor")[0].finding
    heard(home, leases.STALE_SECONDS + 60)
    assert [each.level for each in findings_on(home, "Supervisor")] == ["ok"]
    row = JobRow(id="j-1", kind="optimize", state=JobState.RUNNING, title="t", owner="t", spec="{}", supervisor="s-1")
    with home.store.session() as session:
        session.add(row)
    silent = findings_on(home, "Supervisor")[1]
    assert silent.level == "warning" and silent.finding.startswith("silent with 1 job: s-1 on far") and silent.fix


def test_metrics_that_do_not_answer_are_a_warning(tmp_path: Path) -> None:
    home = open_home(tmp_path, metrics_port=1)
    assert findings_on(home, "Metrics")[0].level == "warning"


def test_the_engine_that_serves_is_missed_and_the_others_are_not(home: Workspace, tmp_path: Path) -> None:
    without = dataclasses.replace(home, settings=home.settings.model_copy(update={"engines": tmp_path / "none"}))
    (serve,), (compress,) = findings_on(without, "Engine serve"), findings_on(without, "Engine compress")
    assert (serve.level, serve.fix) == ("warning", "whetstone engines install serve")
    assert compress.level == "ok" and "whetstone engines install compress" in compress.finding
