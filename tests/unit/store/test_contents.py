"""What is collected is what nobody names: artifacts that are published, registered, named by jobs, deleted and
collected in any order, with crashes between any two statements and jobs that start between the listing and the
removal."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event, update
from sqlmodel import col, select
from typer.testing import CliRunner

from backend.artifacts import artifact_folder, locations
from backend.artifacts.base import Published
from backend.artifacts.disk import FolderLocation
from backend.cli.main import app
from backend.domain.errors import NotFound, NotNow, QuotaExceeded
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import artifact_storage, artifacts, jobs
from backend.service.machines import doctor
from backend.store import artifact_contents, queue
from backend.store.artifact_contents import Contents
from backend.store.leases import Fenced
from backend.store.tables import ArtifactRow, ArtifactUseRow, JobRow
from tests.homes import open_home, prepare
from tests.postgres import Postgres
from tests.properties import examples
from tests.simulated_workers import Crash
from tests.small_artifacts import CARD, RECIPE

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NOW = timedelta(0)


def submit(home: Workspace, job: str, artifacts_: tuple[str, ...] = (), state: JobState = JobState.QUEUED) -> None:
    row = JobRow(id=job, kind="optimize", state=JobState.QUEUED, title="t", owner="t", spec="{}")
    home.store.run(lambda session: queue.submit(session, row, artifacts=artifacts_))
    ended(home, job, state)


def ended(home: Workspace, job: str, state: JobState) -> None:
    statement = update(JobRow).where(col(JobRow.id) == job).values(state=state)
    home.store.run(lambda session: session.execute(statement))


def publish(home: Workspace, job: str, folder: Path) -> Published:
    """What a job made: verified and in its place, and not registered."""
    folder.mkdir(parents=True)
    (folder / "weights").write_text(job)
    manifest = Manifest(
        job=job,
        parent=CARD,
        recipe=RECIPE,
        recipe_hash=RECIPE.hash,
        files=artifact_folder.describe(folder),
        bytes_before=1,
        bytes_after=1,
    )
    artifact_folder.write_manifest(folder, manifest)
    return locations.location_for_new(home.settings).publish(folder, manifest.id, Contents(home.store, job))


def register(home: Workspace, job: str, published: Published) -> None:
    """As a supervisor does at the end. Raises Fenced."""
    text = published.manifest.model_dump_json()
    with home.store.session() as session:
        session.merge(
            ArtifactRow(
                id=published.manifest.id,
                job_id=job,
                model="m",
                recipe="r",
                recipe_hash="h",
                path=published.address,
                bytes=1,
                manifest=text,
            )
        )
        session.flush()
        artifact_contents.link_contents(session, published.manifest.id, published.contents)
        session.execute(update(JobRow).where(col(JobRow.id) == job).values(state=JobState.SUCCEEDED))


class Collecting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder, self.number, self.left = Path(tempfile.mkdtemp(dir=MEMORY)), 0, -1
        self.published: dict[str, Published] = {}
        self.registered: dict[str, str] = {}
        self.readers: dict[str, set[str]] = {}

    @initialize()
    def begin(self) -> None:
        self.home = open_home(self.folder / "home", database_url=self.url())
        for name in ("before_cursor_execute", "commit"):
            event.listen(self.home.store.engine, name, self._step)

    def url(self) -> str | None:
        return None

    def teardown(self) -> None:
        self.home.store.engine.dispose()
        shutil.rmtree(self.folder)

    def _step(self, *_: object) -> None:
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                raise Crash

    @precondition(lambda self: self.number < 6)
    @rule()
    def publish(self) -> None:
        self.number += 1
        job = f"j-{self.number}"
        submit(self.home, job, state=JobState.RUNNING)
        self.published[job] = publish(self.home, job, self.folder / job)

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        """A job that goes on always may; one that was given up, where nothing was taken away meanwhile."""
        job = data.draw(st.sampled_from(sorted(self.published)))
        value = self.published.pop(job)
        with self.home.store.read() as session:
            going = queue.get(session, job).state == JobState.RUNNING
        try:
            register(self.home, job, value)
        except Fenced:
            assert not going
        else:
            self.registered[value.manifest.id] = value.address

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ended(self.home, data.draw(st.sampled_from(sorted(self.published))), JobState.LOST)

    @precondition(lambda self: self.registered)
    @rule(data=st.data(), going=st.booleans())
    def read(self, data: st.DataObject, going: bool) -> None:
        """A job that names one, also one that was listed before and is gone since."""
        artifact = data.draw(st.sampled_from(sorted(self.registered)))
        self._read(artifact, going)

    def _read(self, artifact: str, going: bool) -> None:
        self.number += 1
        job = f"r-{self.number}"
        with suppress(NotFound):
            submit(self.home, job, (artifact,), JobState.QUEUED if going else JobState.FAILED)
            self.readers.setdefault(artifact, set()).add(job)

    @precondition(lambda self: self.registered)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        artifact = data.draw(st.sampled_from(sorted(self.registered)))
        with self.home.store.read() as session:
            going = bool(artifact_contents.list_users(session, artifact))
        try:
            artifacts.delete(self.home, artifact)
        except (NotNow, NotFound) as error:
            assert going == isinstance(error, NotNow)
        else:
            self.readers.pop(artifact, None)
            self.registered.pop(artifact)

    @rule(unused=st.booleans(), crash_after=st.none() | st.integers(0, 25), data=st.data())
    def collect(self, unused: bool, crash_after: int | None, data: st.DataObject) -> None:
        """With whatever else a person does between the listing and the removal."""
        others: list[Callable[[], None]] = [lambda: None]
        if self.registered:
            one = data.draw(st.sampled_from(sorted(self.registered)))
            others.append(lambda: self._read(one, True))
        act, remove = data.draw(st.sampled_from(others)), FolderLocation.remove

        def between(place: FolderLocation, addresses: list[str]) -> None:
            left, self.left = self.left, -1
            act()
            self.left = left
            remove(place, addresses)

        self.left = -1 if crash_after is None else crash_after
        FolderLocation.remove = between  # type: ignore[assignment,method-assign]
        try:
            artifact_storage.collect_garbage(self.home, unused_for=NOW if unused else None, grace=NOW)
        except Crash:
            self.home.store.engine.dispose()
        finally:
            FolderLocation.remove, self.left = remove, -1  # type: ignore[method-assign]

    @invariant()
    def whole(self) -> None:
        with self.home.store.read() as session:
            rows = {row.id: row for row in session.exec(select(ArtifactRow))}
            uses = {(use.artifact_id, use.job_id) for use in session.exec(select(ArtifactUseRow))}
        assert uses == {(artifact, job) for artifact, jobs in self.readers.items() for job in jobs}, (
            "a job's artifact is gone"
        )
        for row in rows.values():
            artifact_folder.verify(Path(row.path), artifact_folder.read_manifest(Path(row.path)))
        for artifact in set(self.registered) - set(rows):
            assert artifact not in self.readers, "what a job names was collected"
            del self.registered[artifact]
        for job, created in self.published.items():
            with self.home.store.read() as session:
                going = queue.get(session, job).state == JobState.RUNNING
            if going:  # it may be about to be registered
                artifact_folder.verify(Path(created.address), created.manifest)

    @rule()
    def settle(self) -> None:
        """Once everything has ended, a collection leaves what is registered and nothing else."""
        for job in list(self.published):
            ended(self.home, job, JobState.LOST)
            del self.published[job]
        artifact_storage.collect_garbage(self.home, grace=NOW)
        with self.home.store.read() as session:
            paths = {row.path for row in session.exec(select(ArtifactRow))}
        at = self.home.settings.artifacts
        assert {str(path) for path in at.glob("*")} == paths
        assert {str(path) for path in at.glob(".*")} == set()


TestCollecting = Collecting.TestCase
TestCollecting.settings = examples(100, quick=12, stateful_step_count=25)


@pytest.mark.process
def test_the_same_on_postgresql(postgres: Postgres) -> None:
    class OnPostgres(Collecting):
        def url(self) -> str | None:
            return postgres.new()

    run_state_machine_as_test(OnPostgres, settings=examples(30, quick=2, stateful_step_count=20))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def home_on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres").new()
    opened = open_home(tmp_path / "home", database_url=url)
    yield opened
    opened.store.engine.dispose()


def test_a_job_that_starts_in_a_collection_has_its_artifact_or_is_refused(
    home_on_each_store: Workspace, tmp_path: Path
) -> None:
    """Truly at once, on connections of their own: either the job is there and so is its artifact, or neither is."""
    for number in range(12):
        submit(home_on_each_store, f"j-{number}", state=JobState.RUNNING)
        register(
            home_on_each_store,
            f"j-{number}",
            published := publish(home_on_each_store, f"j-{number}", tmp_path / f"out-{number}"),
        )
        refused = at_once(home_on_each_store, f"r-{number}", published.manifest.id)
        assert Path(published.address).exists() != refused
        if not refused:
            artifact_folder.verify(Path(published.address), published.manifest)


def at_once(home: Workspace, job: str, artifact: str) -> bool:
    """Whether the job was refused that was submitted while a collection ran."""
    barrier, refused = threading.Barrier(2), []

    def start() -> None:
        barrier.wait()
        try:
            submit(home, job, (artifact,))
        except NotFound:
            refused.append(job)

    reader = threading.Thread(target=start)
    reader.start()
    barrier.wait()
    artifact_storage.collect_garbage(home, unused_for=NOW, grace=NOW)
    reader.join()
    return bool(refused)


def test_an_address_that_was_given_up_is_never_used_again(home_on_each_store: Workspace, tmp_path: Path) -> None:
    submit(home_on_each_store, "j-1", state=JobState.RUNNING)
    first = publish(home_on_each_store, "j-1", tmp_path / "a")
    ended(home_on_each_store, "j-1", JobState.LOST)
    artifact_storage.collect_garbage(home_on_each_store, grace=NOW)
    assert not Path(first.address).exists()
    ended(home_on_each_store, "j-1", JobState.RUNNING)
    second = publish(home_on_each_store, "j-1", tmp_path / "b")
    assert second.manifest.id == first.manifest.id and second.address != first.address
    locations.location_for_new(home_on_each_store.settings).remove([first.address])  # by one that was asleep
    register(home_on_each_store, "j-1", second)
    artifact_folder.verify(Path(second.address), second.manifest)


def test_a_dry_run_says_what_would_go_and_leaves_it(home_on_each_store: Workspace, tmp_path: Path) -> None:
    submit(home_on_each_store, "j-1", state=JobState.RUNNING)
    register(home_on_each_store, "j-1", published := publish(home_on_each_store, "j-1", tmp_path / "a"))
    assert artifact_storage.collect_garbage(home_on_each_store, grace=NOW).contents == 0
    dry = artifact_storage.collect_garbage(home_on_each_store, unused_for=NOW, grace=NOW, dry_run=True)
    assert (dry.artifacts, dry.contents, dry.dry_run) == ([published.manifest.id], 1, True) and dry.bytes > 0
    artifact_folder.verify(Path(published.address), published.manifest)
    done = artifact_storage.collect_garbage(home_on_each_store, unused_for=NOW, grace=NOW)
    assert (done.artifacts, done.bytes) == (dry.artifacts, dry.bytes) and not Path(published.address).exists()
    assert artifact_storage.collect_garbage(home_on_each_store, unused_for=NOW, grace=NOW).contents == 0


def test_what_a_job_reads_is_not_deleted(home_on_each_store: Workspace, tmp_path: Path) -> None:
    submit(home_on_each_store, "j-1", state=JobState.RUNNING)
    register(home_on_each_store, "j-1", published := publish(home_on_each_store, "j-1", tmp_path / "a"))
    submit(home_on_each_store, "r-1", (published.manifest.id,))
    with pytest.raises(NotNow, match=r"is read by job r-1 \(t\): cancel that one first"):
        artifacts.delete(home_on_each_store, published.manifest.id)
    ended(home_on_each_store, "r-1", JobState.CANCELLED)
    assert artifact_storage.collect_garbage(home_on_each_store, unused_for=NOW, grace=NOW).artifacts == []
    artifacts.delete(home_on_each_store, published.manifest.id)
    assert not Path(published.address).exists()
    with pytest.raises(NotFound):
        submit(home_on_each_store, "r-2", (published.manifest.id,))


def test_a_job_beyond_the_quota_is_refused_with_what_to_remove(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", artifacts_quota="70 MB")
    submit(home, "j-1", state=JobState.RUNNING)
    register(home, "j-1", published := publish(home, "j-1", tmp_path / "a"))
    usage = artifact_storage.usage(home)
    assert usage.quota == 70_000_000 and 0 < usage.bytes < 10_000 and usage.place == str(home.settings.artifacts)
    artifact_storage.check_quota(home, 60_000_000)
    named = (
        rf"may take 0\.07 GB, and of the 0\.07 GB .* delete some with .*such as {published.manifest.id} \(0\.00 GB, "
        rf"unused\)\.$"
    )
    with pytest.raises(QuotaExceeded, match=named):
        artifact_storage.check_quota(home, 70_000_000)
    with pytest.raises(QuotaExceeded):  # the recipe's 64 MB margin and 13 MB of weights
        prepare(home, "starter", RECIPE)
    levels = {finding.subject: finding for finding in doctor.examine(home)}
    assert levels["Artifacts"].level == "ok" and "0% of the quota of 0.07 GB" in levels["Artifacts"].finding


def test_jobs_under_way_count_against_the_quota(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", artifacts_quota="200 MB")
    spec = prepare(home, "starter", RECIPE).spec
    for _ in range(2):
        jobs.submit(home, spec, "t")
    with pytest.raises(QuotaExceeded, match=r"0\.15 GB are for jobs under way: wait for those jobs"):
        artifact_storage.check_quota(home, 77_000_000)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"artifact_store": "s3://"}, "write s3://BUCKET/PREFIX"),
        ({"artifacts_quota": "lots"}, "write a size such as 500GB"),
        ({"artifact_store": "/proc/none"}, "cannot be written"),
    ],
)
def test_doctor_says_what_is_wrong_with_the_place_of_artifacts(
    tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    findings = doctor.examine(open_home(tmp_path / "home", **wrong))
    (finding,) = [each for each in findings if each.subject == "Artifacts"]
    assert finding.level == "problem" and words in finding.finding


def test_the_command_line_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = open_home(tmp_path / "home")
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    submit(home, "j-1", state=JobState.RUNNING)
    register(home, "j-1", published := publish(home, "j-1", tmp_path / "a"))
    result = CliRunner().invoke(app, ["artifacts", "gc", "--unused-for", "0", "--grace", "0", "--dry-run", "--json"])
    assert json.loads(result.stdout) == {
        "artifacts": [published.manifest.id],
        "contents": 1,
        "bytes": artifact_storage.usage(home).bytes,
        "dry_run": True,
    }
    assert CliRunner().invoke(app, ["artifacts", "fetch", published.manifest.id]).stdout.strip() == published.address
    result = CliRunner().invoke(app, ["artifacts", "gc", "--unused-for", "0", "--grace", "0"])
    assert (
        result.stdout == f"{published.manifest.id}: 1 content removed, 0.0 MB freed.\n"
        and not Path(published.address).exists()
    )
