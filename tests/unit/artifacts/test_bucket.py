"""Artifacts in a bucket, against moto's server behind a proxy that breaks what it is told to."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from backend.artifacts import artifact_folder, locations
from backend.artifacts.base import ArtifactLocation, Published
from backend.artifacts.cache import Cache
from backend.aws import objects
from backend.domain.errors import ArtifactCorrupt, RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.progress import NoProgress
from backend.service import Workspace
from backend.store import artifact_contents, history, leases, queue
from backend.store.artifact_contents import Contents
from backend.store.leases import Lease
from backend.store.tables import ArtifactRow, JobRow
from backend.supervisor.registry import NotPlaced, Staged
from backend.supervisor.uploads import Uploads
from backend.worker.measuring.artifact_copies import local_artifacts
from tests.buckets import empty_bucket, faults, keys
from tests.fakes.running import ask, running
from tests.homes import DATABASE, eventually, open_home
from tests.simulated_workers import Home, World
from tests.small_artifacts import CARD, RECIPE

pytestmark = pytest.mark.process

PLACE = "s3://team/studio"
MIB = 1 << 20
PART = 5 * MIB
"""The least that S3 takes."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running("s3.py") as url:
        yield url


@pytest.fixture(scope="module")
def proxy(address: str) -> Iterator[str]:
    with running("faulty.py", address) as url:
        yield url


@pytest.fixture
def client(address: str, proxy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """It asks the server; everything else asks the proxy."""
    bucket = empty_bucket(address, "team", monkeypatch, tmp_path)
    faults(proxy)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
    monkeypatch.setattr(objects, "PART_BYTES", PART)
    return bucket


@pytest.fixture
def home_with_bucket(client: Any, tmp_path: Path) -> Workspace:
    return open_home(tmp_path / "home", artifact_store=PLACE)


def place(home: Workspace) -> ArtifactLocation:
    return locations.location_for_new(home.settings)


def staged(folder: Path, job: str = "j-1", weights: bytes = b"weights", config: bytes = b"{}") -> Manifest:
    """What a job leaves to be published."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(weights)
    (folder / "model" / "config.json").write_bytes(config)
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
    return manifest


def publish(home: Workspace, folder: Path, manifest: Manifest) -> Published:
    return place(home).publish(folder, manifest.id, Contents(home.store, manifest.job))


def forget_copies(home: Workspace) -> None:
    cache = Cache(home.settings.cache / "artifacts", 0)
    cache.make_room(0)
    assert list(cache.folder.glob("*/")) == []


def many(size: int, seed: int = 0) -> bytes:
    return b"".join(hashlib.sha256(f"{seed} {number}".encode()).digest() for number in range(size // 32))


def test_what_was_published_comes_back_byte_for_byte(home_with_bucket: Workspace, client: Any, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out", weights=many(12 * MIB))
    progress: list[tuple[int, int]] = []
    published = place(home_with_bucket).publish(
        tmp_path / "out", manifest.id, Contents(home_with_bucket.store, "j-1"), lambda *at: progress.append(at)
    )
    assert progress[-1] == (12 * MIB + 2, 12 * MIB + 2) and progress == sorted(progress)
    assert [key.split("/")[1] for key in keys(client, "team")] == ["artifacts", "contents", "contents"]
    with place(home_with_bucket).use(
        published.address, manifest.id
    ) as copied:  # the copy that the publisher keeps, by links
        artifact_folder.verify(copied, manifest)
    forget_copies(home_with_bucket)
    assert place(home_with_bucket).missing(published.address) == 12 * MIB + 2
    with place(home_with_bucket).use(published.address, manifest.id, lambda *at: progress.append(at)) as fetched:
        artifact_folder.verify(fetched, manifest)
        assert (fetched / "model" / "model.safetensors").read_bytes() == many(12 * MIB)
    assert progress[-1] == (12 * MIB + 2, 12 * MIB + 2) and place(home_with_bucket).missing(published.address) == 0


def test_an_outline_has_what_a_page_reads_and_no_weights(home_with_bucket: Workspace, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out")
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    forget_copies(home_with_bucket)
    folder = place(home_with_bucket).outline(published.address, manifest)
    assert [path.name for path in sorted((folder / "model").iterdir())] == ["config.json"]
    with place(home_with_bucket).use(published.address, manifest.id) as fetched:
        artifact_folder.verify(fetched, manifest)


def test_the_manifest_is_written_last(home_with_bucket: Workspace, client: Any, proxy: str, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out")
    faults(proxy, {"method": "PUT", "has": "/artifacts/", "do": 500, "times": 99})
    with pytest.raises(Exception, match="S3 is busy"):
        publish(home_with_bucket, tmp_path / "out", manifest)
    assert [key.split("/")[1] for key in keys(client, "team")] == ["contents", "contents"]
    faults(proxy)
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    assert len(keys(client, "team")) == 3
    place(home_with_bucket).verify(published.address, manifest)


LONG = pytest.mark.campaign


@pytest.mark.parametrize(
    ("where", "do"),
    [
        ("partNumber=2", 503),
        ("uploadId", "lost"),
        ("contents/", "drop"),
        *(
            pytest.param(where, do, marks=LONG)
            for where in ("partNumber=2", "uploads", "contents/", "artifacts/", "uploadId")
            for do in (500, 503, "drop", "lost")
        ),
    ],
)
def test_an_upload_outlives_a_fault(
    home_with_bucket: Workspace, client: Any, proxy: str, tmp_path: Path, where: str, do: object
) -> None:
    manifest = staged(tmp_path / "out", weights=many(12 * MIB))
    faults(proxy, {"has": where, "do": do})
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    place(home_with_bucket).verify(published.address, manifest)


@pytest.mark.parametrize(
    ("where", "do"),
    [
        ("artifacts/", "flip"),
        ("contents/", "cut"),
        ("contents/", "flip"),
        *(
            pytest.param(where, do, marks=LONG)
            for where in ("artifacts/", "contents/")
            for do in (500, 503, "drop", "lost", "cut", "flip")
        ),
    ],
)
def test_a_download_outlives_a_fault(
    home_with_bucket: Workspace, client: Any, proxy: str, tmp_path: Path, where: str, do: object
) -> None:
    manifest = staged(tmp_path / "out", weights=many(3 * MIB))
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    forget_copies(home_with_bucket)
    faults(proxy, {"method": "GET", "has": where, "do": do})
    with place(home_with_bucket).use(published.address, manifest.id) as fetched:
        artifact_folder.verify(fetched, manifest)


def test_contents_that_two_artifacts_name_stay_for_the_other(
    home_with_bucket: Workspace, client: Any, tmp_path: Path
) -> None:
    first = staged(tmp_path / "a", "j-1", weights=b"one")
    second = staged(tmp_path / "b", "j-2", weights=b"two")
    one, two = publish(home_with_bucket, tmp_path / "a", first), publish(home_with_bucket, tmp_path / "b", second)
    assert len(set(one.contents) & set(two.contents)) == 1
    assert len(keys(client, "team")) == 5
    withdrawn = home_with_bucket.store.run(lambda session: artifact_contents.withdraw(session, "j-1", one.contents))
    place(home_with_bucket).remove(withdrawn)
    assert len(keys(client, "team")) == 3
    place(home_with_bucket).verify(two.address, second)


def test_what_an_old_ledger_says_is_there_is_looked_for(
    home_with_bucket: Workspace, client: Any, tmp_path: Path
) -> None:
    """As after a restored backup: the bucket has gone on since."""
    publish(home_with_bucket, tmp_path / "a", staged(tmp_path / "a", "j-1", weights=b"one"))
    for key in keys(client, "team"):
        client.delete_object(Bucket="team", Key=key)
    second = staged(tmp_path / "b", "j-2", weights=b"one")
    published = publish(home_with_bucket, tmp_path / "b", second)
    place(home_with_bucket).verify(published.address, second)


def test_a_bit_that_the_bucket_lost_is_found(home_with_bucket: Workspace, client: Any, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out")
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    forget_copies(home_with_bucket)
    spoilt = next(key for key in keys(client, "team") if manifest.files[1].sha256 in key)
    client.put_object(Bucket="team", Key=spoilt, Body=b"weightz")
    with pytest.raises(ArtifactCorrupt, match=r"model/model.safetensors of a-\w+ in s3://team/studio is not the file"):
        place(home_with_bucket).verify(published.address, manifest)
    with (
        pytest.raises(Exception, match="another checksum"),
        place(home_with_bucket).use(published.address, manifest.id),
    ):
        pass
    client.delete_object(Bucket="team", Key=spoilt)
    with pytest.raises(ArtifactCorrupt, match="not in its bucket any more"):
        place(home_with_bucket).verify(published.address, manifest)


def test_a_bit_that_this_disk_lost_is_fetched_anew(home_with_bucket: Workspace, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out")
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    forget_copies(home_with_bucket)
    with place(home_with_bucket).use(published.address, manifest.id) as fetched:
        (fetched / "model" / "model.safetensors").write_bytes(b"weightz")
    with place(home_with_bucket).use(published.address, manifest.id) as again:
        assert (again / "model" / "model.safetensors").read_bytes() == b"weights"


def test_copies_stay_within_their_bound_and_what_is_used_stays(home_with_bucket: Workspace, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "copies", 250)
    for number in range(3):
        folder = cache.folder_of(f"a-{number}")
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(b"x" * 100)
        os.utime(folder, (number, number))
    with cache.using("a-0"):
        os.utime(cache.folder_of("a-0"), (0, 0))
        cache.make_room(100)
    assert [cache.is_whole(f"a-{number}") for number in range(3)] == [True, False, False]


UPLOADER = """
import sys
from pathlib import Path
from threading import Event
from backend.artifacts import artifact_folder, locations
from backend.aws import objects
from backend.settings import Settings
from backend.store.artifact_contents import Contents
from backend.store.database import open_store

objects.PART_BYTES, objects.STREAMS = int(sys.argv[3]), 1
settings = Settings(home=Path(sys.argv[1]), artifact_store=sys.argv[4])
out = Path(sys.argv[2])
manifest = artifact_folder.read_manifest(out)

def stand_in_the_middle(done, total):
    if done >= 4 * objects.PART_BYTES:
        Event().wait()

ledger = Contents(open_store(settings), manifest.job)
locations.location_for_new(settings).publish(out, manifest.id, ledger, stand_in_the_middle)
"""


def parts_seen(proxy: str) -> list[int]:
    return [size for method, path, size in ask(f"{proxy}/seen") if method == "PUT" and "partNumber" in path]


@pytest.mark.process
def test_an_upload_that_was_killed_goes_on_where_it_stopped(
    home_with_bucket: Workspace, client: Any, proxy: str, tmp_path: Path
) -> None:
    manifest = staged(tmp_path / "out", weights=many(40 * MIB))
    before = len(parts_seen(proxy))
    arguments = [str(home_with_bucket.settings.home), str(tmp_path / "out"), str(PART), PLACE]
    with subprocess.Popen([sys.executable, "-c", UPLOADER, *arguments], cwd=Path(__file__).parents[3]) as process:
        while len(parts_seen(proxy)) < before + 4 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    sent = len(parts_seen(proxy)) - before
    assert process.wait() == -signal.SIGKILL and sent < 8
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    assert len(parts_seen(proxy)) - before <= 8 + 1  # one part at most was under way
    place(home_with_bucket).verify(published.address, manifest)
    assert "Uploads" not in client.list_multipart_uploads(Bucket="team")


@pytest.fixture
def working(client: Any, tmp_path: Path) -> Iterator[Home]:
    """A supervisor whose artifacts go to the bucket, with a job whose worker has just ended well."""
    open_home(tmp_path)
    world = World()
    home = Home(world, tmp_path / "home", f"sqlite:///{tmp_path / DATABASE}", "one", artifact_store=PLACE)
    row = JobRow(id="j-1", kind="optimize", state=JobState.QUEUED, title="t", owner="t", spec="{}")
    home.store.run(lambda session: queue.submit(session, row))
    home.tick()
    world.workers[0].succeed()
    yield home
    home.store.engine.dispose()


def job_row(home: Home) -> JobRow:
    with home.store.read() as session:
        return queue.get(session, "j-1")


def test_a_supervisor_registers_what_is_in_the_bucket(working: Home, client: Any) -> None:
    working.tick()
    assert job_row(working).state == JobState.SUCCEEDED
    with working.store.read() as session:
        (row,) = session.exec(select(ArtifactRow)).all()
    assert row.path.startswith(f"{PLACE}/artifacts/{row.id}.") and not (working.settings.home / "artifacts").exists()
    locations.location_of(working.settings, row.path).verify(row.path, Manifest.model_validate_json(row.manifest))
    assert not list((working.settings.jobs / "j-1" / "1" / "work").glob("output"))


def test_an_artifact_waits_for_a_place_that_does_not_answer(
    working: Home, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "TRIES", 1)
    answering = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    working.tick()
    working.tick()
    assert job_row(working).state == JobState.RUNNING
    with working.store.read() as session:
        warnings = [event.message for _, event in history.list_events(session, "j-1") if event.kind == "warning"]
    assert "Cannot reach http://127.0.0.1:1" in str(warnings[0]) and "is tried again" in str(warnings[0])
    monkeypatch.setenv("AWS_ENDPOINT_URL", answering)
    working.tick()
    assert job_row(working).state == JobState.SUCCEEDED and len(keys(client, "team")) == 2


def test_a_job_whose_artifact_waits_can_be_cancelled(working: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "TRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    working.tick()
    working.store.run(lambda session: queue.request_cancel(session, "j-1", "alice"))
    working.tick()
    assert job_row(working).state == JobState.CANCELLED and "waited for its place" in str(job_row(working).error)


def test_what_is_refused_at_the_commit_leaves_the_bucket(
    working: Home, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = artifact_folder.verify

    def slow(folder: Path, manifest: Manifest) -> None:
        verify(folder, manifest)
        with working.store.session() as session:
            leases.change(session, leases.read_lease(job_row(working)), list(JobState), token=99)

    monkeypatch.setattr(artifact_folder, "verify", slow)
    working.tick()
    assert keys(client, "team") == []


def test_staging_goes_on_beside_the_rounds_and_asks_again_after_a_pause() -> None:
    now, outcomes = 0.0, [NotPlaced("away"), Staged(lambda _: {})]
    gate = threading.Event()

    def work() -> Staged:
        gate.wait(10)
        outcome = outcomes.pop(0)
        if isinstance(outcome, NotPlaced):
            raise outcome
        return outcome

    uploads, lease = Uploads(in_background=True, monotonic=lambda: now), Lease("j-1", 1, 1)
    assert uploads.stage(lease, work) is None
    gate.set()
    with pytest.raises(NotPlaced):
        eventually("the first try", lambda: uploads.stage(lease, work) is not None)
    assert uploads.stage(lease, work) is None and len(outcomes) == 1
    now = 16.0
    eventually("the second try", lambda: uploads.stage(lease, work) is not None)


def test_an_evaluation_has_its_artifact_here_while_it_runs(home_with_bucket: Workspace, tmp_path: Path) -> None:
    manifest = staged(tmp_path / "out")
    published = publish(home_with_bucket, tmp_path / "out", manifest)
    forget_copies(home_with_bucket)
    local = place(home_with_bucket).local(published.address)
    variant = Variant(
        name="r",
        source=f"{manifest.id}@engine=vllm",
        kind="artifact",
        model_path="/another/host/model",
        stored_at=published.address,
    )
    file = variant.model_copy(update={"gguf": "/another/host/model/model.gguf"})
    messages: list[str] = []

    class RecordedPhases(NoProgress):
        def phase(self, name: str, message: str, **_: Any) -> None:
            messages.append(message)

    with local_artifacts([variant, file], home_with_bucket.settings, RecordedPhases()) as (local_variant, local_file):
        assert local_file.gguf == str(local / "model" / "model.gguf")
        assert local_variant.model_path == str(local / "model") and (local / "model" / "model.safetensors").is_file()
        Cache(home_with_bucket.settings.cache / "artifacts", 0).make_room(0)
        assert (local / "model" / "model.safetensors").is_file(), "what is used stays"
    assert messages == ["Fetching r (0.0 MB) from s3://team/studio"]
    assert artifact_folder.served_files(local_variant) == artifact_folder.served_of(manifest, local_variant)
    forget_copies(home_with_bucket)


def test_a_place_that_cannot_be_written_says_why(home_with_bucket: Workspace, client: Any, tmp_path: Path) -> None:
    place(home_with_bucket).check_writable()
    assert keys(client, "team") == []
    other = locations.location_for_new(
        home_with_bucket.settings.model_copy(update={"artifact_store": "s3://nobodys/x"})
    )
    with pytest.raises(RequestError, match="There is no bucket `nobodys`"):
        other.check_writable()
    with pytest.raises(RequestError, match="write s3://BUCKET/PREFIX"):
        locations.location_for_new(home_with_bucket.settings.model_copy(update={"artifact_store": "s3:///x"}))


@pytest.mark.parametrize(
    ("written", "bytes_"), [("500GB", 500 * 10**9), ("1.5 TiB", 3 << 39), ("20", 20), ("2k", 2000)]
)
def test_sizes_are_read_with_their_unit(written: str, bytes_: int) -> None:
    assert locations.size(written, "X") == bytes_


@pytest.mark.parametrize("written", ["many", "-1GB", "1 GBit", "1e9", "500i", "500iB"])
def test_what_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(RequestError, match="WHETSTONE_ARTIFACTS_QUOTA is `"):
        locations.size(written, "WHETSTONE_ARTIFACTS_QUOTA")
