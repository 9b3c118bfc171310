"""A studio in one file and back: while jobs run, on either database, and never from a file that is torn or
another's."""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import artifact_folder
from backend.domain.errors import NotAllowed, NotNow, WhetstoneError
from backend.domain.jobs.jobs import Event, InstallSpec, JobState
from backend.domain.roles import Actor, Role
from backend.service import Workspace, open_workspace
from backend.service.jobs import artifacts, jobs
from backend.service.studio import audit, backup
from backend.settings import Settings
from backend.store import history, queue
from backend.store.tables import JobRow
from tests.homes import open_home
from tests.postgres import Postgres
from tests.simulated_workers import Home, World

SPEC = InstallSpec(engine="serve")


@pytest.fixture
def home_with_jobs(tmp_path: Path) -> Workspace:
    """A job that succeeded with an artifact, one that runs, one that waits."""
    opened = open_home(tmp_path / "home")
    run = Home(World(), tmp_path / "home", f"sqlite:///{tmp_path / 'home' / 'whetstone.db'}", "one")
    for name in ("j-1", "j-2", "j-3"):
        row = JobRow(id=name, kind="optimize", state=JobState.QUEUED, title=name, owner="ann", spec="{}")
        run.store.run(lambda session, row=row: queue.submit(session, row))
        if name == "j-1":
            run.tick()
            run._world.workers[0].succeed()
            run.tick()
    run.tick()
    run._world.workers[-1].say()
    run.tick()
    assert {job.id: job.state for job in jobs.listing(opened)} == {
        "j-1": JobState.SUCCEEDED,
        "j-2": JobState.RUNNING,
        "j-3": JobState.QUEUED,
    }
    return opened


def new(tmp_path: Path, name: str = "new", url: str | None = None) -> Workspace:
    return open_workspace(Settings(home=tmp_path / name, database_url=url))


def states(opened: Workspace) -> dict[str, JobState]:
    return {job.id: job.state for job in jobs.listing(opened)}


RESTORED = {"j-1": JobState.SUCCEEDED, "j-2": JobState.LOST, "j-3": JobState.CANCELLED}


def test_what_ran_is_lost_and_can_be_resumed_and_all_else_is_as_it_was(
    home_with_jobs: Workspace, tmp_path: Path
) -> None:
    created = backup.back_up(home_with_jobs, tmp_path / "b.tar", with_files=True)
    assert created.rows["jobs"] == 3 and not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    shutil.rmtree(home_with_jobs.settings.home)
    there = new(tmp_path)
    restored = backup.restore(there, tmp_path / "b.tar")
    assert (restored.lost, restored.held, restored.missing, states(there)) == (1, 1, 0, RESTORED)
    (artifact,) = artifacts.listing(there)
    assert artifact.path.startswith(str(there.settings.home))
    artifact_folder.verify(Path(artifact.path), artifact_folder.read_manifest(Path(artifact.path)))
    messages = [event.message for _, event in jobs.events(there, "j-2")]
    assert messages[-2:] == [
        "attempt 1, word 1",
        "It ran when the backup was made that it was restored from: resume it.",
    ]
    assert jobs.resume(there, "j-2").attempt == 2
    assert [record.action for record in audit.listing(there)][-1] and "restore" in {
        r.action for r in audit.listing(there)
    }


def test_no_job_of_a_backup_starts_before_somebody_releases_it(tmp_path: Path) -> None:
    """A backup of somebody else's: an install from an index of their choice waits in it, and another job after that
    one."""
    foreign = new(tmp_path, "foreign")
    first = jobs.submit(foreign, InstallSpec(engine="serve", index="https://packages.example/simple"), "Install")
    second = jobs.submit(foreign, SPEC, "Again", after=first.id)
    backup.back_up(foreign, tmp_path / "b.tar")
    there = new(tmp_path)
    assert backup.restore(there, tmp_path / "b.tar").held == 2
    run = Home(World(), there.settings.home, f"sqlite:///{there.settings.home / 'whetstone.db'}", "one")
    for _ in range(3):
        run.tick()
    assert run._world.workers == []
    assert {job.id: job.state for job in jobs.listing(there)} == dict.fromkeys(
        [first.id, second.id], JobState.CANCELLED
    )
    assert f"`whetstone jobs release {first.id}` lets it run" in str(jobs.show(there, first.id).error)
    with pytest.raises(NotNow, match=f"`whetstone jobs release {first.id}`"):
        jobs.resume(there, first.id)
    assert jobs.release(there, first.id).state == JobState.QUEUED
    assert jobs.release(there, second.id).state == JobState.QUEUED
    run.tick()
    assert [worker.job for worker in run._world.workers] == [first.id]


def test_without_files_it_says_what_is_missing(home_with_jobs: Workspace, tmp_path: Path) -> None:
    backup.back_up(home_with_jobs, tmp_path / "b.tar")
    there = new(tmp_path)
    assert backup.restore(there, tmp_path / "b.tar").missing == 1
    (artifact,) = artifacts.listing(there)
    assert artifact_folder.read_manifest(Path(artifact.path)).id == artifact.id


def test_a_home_that_was_begun_while_files_were_put_back_keeps_its_own(
    home_with_jobs: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup.back_up(home_with_jobs, tmp_path / "b.tar", with_files=True)
    there, put = new(tmp_path), backup._put_files

    def meanwhile(*items: Any) -> None:
        put(*items)
        jobs.submit(there, SPEC, "Mine")

    monkeypatch.setattr(backup, "_put_files", meanwhile)
    with pytest.raises(NotNow, match="This home has jobs of its own"):
        backup.restore(there, tmp_path / "b.tar")
    assert [(job.title, job.state) for job in jobs.listing(there)] == [("Mine", JobState.QUEUED)]


@pytest.mark.process
def test_a_home_moves_to_a_server_and_back(home_with_jobs: Workspace, tmp_path: Path, postgres: Postgres) -> None:
    backup.back_up(home_with_jobs, tmp_path / "b.tar", with_files=True)
    url = postgres.new()
    there = new(tmp_path, "served", url)
    backup.restore(there, tmp_path / "b.tar")
    assert states(there) == RESTORED
    jobs.submit(there, SPEC, "One more")  # its events and records are numbered on from those that were restored
    again = backup.back_up(there, tmp_path / "c.tar", with_files=True)
    there.store.engine.dispose()
    postgres.drop(url)
    back = new(tmp_path, "back")
    backup.restore(back, tmp_path / "c.tar")
    assert len(states(back)) == 4 == again.rows["jobs"]
    assert [seq for seq, _ in jobs.events(back, "j-2")] == list(range(1, len(jobs.events(back, "j-2")) + 1))


def test_what_is_written_meanwhile_is_in_it_whole_or_not_at_all(home_with_jobs: Workspace, tmp_path: Path) -> None:
    ended = threading.Event()

    def work() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            events = [Event(kind="note", message=f"{number} {part}") for part in range(20)]
            home_with_jobs.store.run(lambda session, reported=events: history.append(session, "j-2", reported))

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for number in range(3):
            backup.back_up(home_with_jobs, tmp_path / f"{number}.tar")
    finally:
        ended.set()
        writer.join()
    for number in range(3):
        there = new(tmp_path, f"new-{number}")
        backup.restore(there, tmp_path / f"{number}.tar")
        messages = [event.message for _, event in jobs.events(there, "j-2") if event.kind == "note"]
        assert (len(messages) - 1) % 20 == 0


def flipped(data: bytes) -> bytes:
    at = data.index(b'"title":"j-3"') + len(b'"title":"j-')
    return data[:at] + b"9" + data[at + 1 :]


def added(data: bytes) -> bytes:
    """One more member, whose path leads out of the home."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=target, mode="w") as created:
        info = tarfile.TarInfo("files/artifacts/../../../x")
        info.size = 1
        created.addfile(info, io.BytesIO(b"x"))
        for member in old:
            created.addfile(member, old.extractfile(member))
    return target.getvalue()


TORN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"a letter",
    "half": lambda data: data[: len(data) // 2],
    "no end": lambda data: data[:-11000],
    "a byte": flipped,
    "one more": added,
    "zeros": lambda data: b"\0" * len(data),
}


@pytest.mark.parametrize("how", TORN)
def test_a_torn_or_foreign_file_is_refused_and_changes_nothing(
    home_with_jobs: Workspace, tmp_path: Path, how: str
) -> None:
    backup.back_up(home_with_jobs, tmp_path / "b.tar", with_files=True)
    torn = tmp_path / "torn.tar"
    torn.write_bytes(TORN[how]((tmp_path / "b.tar").read_bytes()))
    there = new(tmp_path)
    before = sorted(there.settings.home.rglob("*"))
    with pytest.raises(backup.BackupUnusable, match="no whole backup of Whetstone") as refused:
        backup.restore(there, torn)
    assert "\n" not in str(refused.value) and str(refused.value).endswith("nothing was restored.")
    assert states(there) == {} and sorted(there.settings.home.rglob("*")) == before


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(backup.BackupUnusable):
            backup.read(path)


def test_a_home_in_use_a_name_in_use_and_whoever_is_no_admin_are_refused(
    home_with_jobs: Workspace, tmp_path: Path
) -> None:
    backup.back_up(home_with_jobs, tmp_path / "b.tar")
    with pytest.raises(NotNow, match="jobs of its own"):
        backup.restore(home_with_jobs, tmp_path / "b.tar")
    with pytest.raises(NotNow, match="is there already"):
        backup.back_up(home_with_jobs, tmp_path / "b.tar")
    ann = home_with_jobs.acting_as(Actor(name="ann", role=Role.OPERATOR))
    for act in (lambda: backup.back_up(ann, tmp_path / "c.tar"), lambda: backup.restore(ann, tmp_path / "b.tar")):
        with pytest.raises(NotAllowed):
            act()
    assert not (tmp_path / "c.tar").exists()


def test_a_backup_into_a_folder_that_is_not_there_leaves_nothing(home_with_jobs: Workspace, tmp_path: Path) -> None:
    with pytest.raises(WhetstoneError):
        backup.back_up(home_with_jobs, tmp_path / "no" / "b.tar")
    assert not (tmp_path / "no").exists()
