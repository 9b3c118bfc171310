"""Imports as real jobs: from a fake hub and from moto's S3 to a folder that can be optimized, through every way it can
end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.catalog.cards.card import read_card
from backend.domain.errors import LicenceNotAccepted, NotEnoughDisk, RequestError
from backend.domain.jobs.jobs import JobState
from backend.hardware import probe
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.models import imports, models
from tests.fakes.running import running
from tests.homes import eventually, until_ended, worker_pid
from tests.hubs import FakeHub
from tests.integration.cli.calling import one_sentence, process, whetstone
from tests.tiny import tiny_llama

ID = "org/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", hidden=256, intermediate=1024)


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(model, root / ID)
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(running_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return running_hub.reset(ID, monkeypatch)


def submit(home: Workspace, source: str = ID) -> JobView:
    job = imports.submit(home, imports.prepare(home, source))
    supervisors.ensure_running(home)
    return job


def submit_standing(hub: FakeHub, home: Workspace, after: int) -> JobView:
    """An import from a hub that sends nothing more after so many bytes of each download."""
    prepared = imports.prepare(home, ID)
    hub.fault(stand_after=after)
    hub.forget()
    job = imports.submit(home, prepared)
    supervisors.ensure_running(home)
    return job


def folders(home: Workspace) -> list[str]:
    """Every model that is visible in the home."""
    results = (path.parent.relative_to(home.settings.models) for path in home.settings.models.rglob("config.json"))
    return sorted(folder.as_posix() for folder in results if folder.parts[0] != ".partial")


def test_a_model_is_imported_once_with_progress_in_bytes_and_knows_its_source(
    hub: FakeHub, home: Workspace, model: Path
) -> None:
    # 1. It becomes a folder that knows where it came from.
    hub.fault(slow_ms=60)
    job = submit(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    sha = imports.inspect(home, ID).revision
    path = home.settings.models / f"{ID}@{sha}"
    assert ended.result["path"] == str(path)
    card = models.resolve(home, str(path))
    assert ended.result["model"] == card.model_dump(mode="json")
    assert (card.id, card.origin, card.licence) == (f"{ID}@{sha[:8]}", "imported", "apache-2.0")
    local = read_card(model)
    assert (card.parameters, card.tokenizer_hash, card.revision) == (
        local.parameters,
        local.tokenizer_hash,
        local.revision,
    )
    assert folders(home) == [f"{ID}@{sha}"]
    assert not list((home.settings.models / ".partial").iterdir())

    # 2. Its progress was in bytes, with a rate and the time left.
    events = [event for _, event in jobs.events(home, job.id) if event.kind == "progress" and event.phase == "download"]
    assert {event.unit for event in events} == {"bytes"}
    assert events[-1].done == events[-1].total == imports.inspect(home, ID).bytes
    assert any(
        event.rate and event.eta_s is not None and 0 < (event.done or 0) < (event.total or 0) for event in events
    )

    # 3. The same import again is here already, and fetches nothing.
    hub.fault()
    hub.forget()
    prepared = imports.prepare(home, ID)
    assert (prepared.present, prepared.to_fetch) == (True, 0)
    hub.forget()
    again = imports.submit(home, prepared)
    supervisors.ensure_running(home)
    assert until_ended(home, again.id).result["model"] == ended.result["model"]
    assert hub.served("/cdn/") == []


def test_an_import_goes_by_who_asked_for_it_and_its_token_is_in_nothing_on_disk(
    hub: FakeHub, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reached the studio where it was submitted counts, not who reaches the one that started the supervisor."""
    hub.settings(ID, private=True, licence="mit")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    prepared = imports.prepare(home, ID)
    monkeypatch.setenv("WHETSTONE_SHARED", "1")  # the supervisor's: `home` was opened before
    own = imports.submit(home, prepared)
    supervisors.ensure_running(home)
    assert until_ended(home, own.id).state is JobState.SUCCEEDED, jobs.show(home, own.id).error
    assert jobs.specification(home, own.id)["shared"] is False
    supervisors.stop(home)
    paths = [path for path in home.settings.home.rglob("*") if path.is_file()]
    assert len(paths) > 8
    assert [path for path in paths if b"hf_good" in path.read_bytes()] == []


def fetched(home: Workspace) -> int:
    """Bytes of weights that an unfinished import has on disk."""
    return sum(path.stat().st_size for path in home.settings.models.glob(".partial/*/model.safetensors*"))


def test_a_cancelled_or_killed_import_shows_nothing_and_resumes_where_it_stopped(hub: FakeHub, home: Workspace) -> None:
    # 1. Cancelled, it keeps what it has.
    job = submit_standing(hub, home, after=600_000)
    eventually("half a megabyte", lambda: fetched(home) > 500_000)
    jobs.cancel(home, job.id)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.CANCELLED
    assert "jobs resume" in str(ended.error)
    assert folders(home) == []
    remaining = fetched(home)
    eventually("the hub to see that the connection is gone", lambda: len(hub.ended("/cdn/")) == 1)

    # 2. Resumed, it fetches the rest, until its worker is killed.
    hub.forget()
    jobs.resume(home, job.id)
    supervisors.ensure_running(home)
    eventually("another half a megabyte", lambda: fetched(home) > remaining + 500_000)
    os.kill(worker_pid(home), signal.SIGKILL)
    assert until_ended(home, job.id).state is JobState.FAILED
    assert folders(home) == []
    eventually("the hub to see that the connection is gone", lambda: len(hub.ended("/cdn/")) == 1)
    assert [entry["range"] for entry in hub.served("/cdn/")] == [f"bytes={remaining}-"]

    # 3. Resumed once more, it ends with the model's own bytes.
    hub.fault()
    jobs.resume(home, job.id)
    supervisors.ensure_running(home)
    assert until_ended(home, job.id).state is JobState.SUCCEEDED
    assert len(folders(home)) == 1
    weights = next(home.settings.models.glob(f"{ID}@*/model.safetensors"))
    assert weights.read_bytes() == (hub.root / ID / "model.safetensors").read_bytes()


def test_an_import_from_a_server_that_stands_still_can_be_cancelled(hub: FakeHub, home: Workspace) -> None:
    job = submit_standing(hub, home, after=1)
    eventually("the first bytes", lambda: fetched(home) > 0)
    jobs.cancel(home, job.id)
    assert "jobs resume" in str(until_ended(home, job.id).error)  # the worker's own word: it was not killed


def test_a_hub_that_changes_its_mind_about_access_fails_the_job_in_one_sentence(
    hub: FakeHub, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = imports.prepare(home, ID)
    hub.settings(ID, gated="auto", licence="apache-2.0")
    job = imports.submit(home, prepared)
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED
    assert "is gated: ask for access" in str(ended.error)
    assert folders(home) == []


def test_a_licence_with_conditions_is_asked_once_and_recorded(hub: FakeHub, home: Workspace) -> None:
    hub.settings(ID, licence="llama3.1")
    with pytest.raises(LicenceNotAccepted, match=r"licence `llama3\.1`: read its conditions at http.*/org/tiny, then"):
        imports.prepare(home, ID)
    assert jobs.listing(home) == []
    job = imports.submit(home, imports.prepare(home, ID, accept_licence=True))
    spec = jobs.specification(home, job.id)
    assert (spec["licence"], bool(spec["accepted"])) == ("llama3.1", True)
    assert imports.prepare(home, ID).spec.accepted is not None  # asked once
    hub.settings(ID, licence="llama4")
    with pytest.raises(LicenceNotAccepted):
        imports.prepare(home, ID)


def test_an_import_too_large_for_the_disk_is_refused_before_it_starts(
    hub: FakeHub, home: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A sparse file: its size is real, its blocks are not."""
    folder = hub.root / "org/huge"
    shutil.copytree(hub.root / ID, folder)
    size = probe.free_disk(home.settings.home) * 2
    header = json.dumps({"model.norm.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as sink:
        sink.write(len(header).to_bytes(8, "little") + header)
        sink.truncate(8 + len(header) + size)
    hub.settings("org/huge", licence="mit")
    try:
        with pytest.raises(NotEnoughDisk, match="GB of disk"):
            imports.prepare(home, "org/huge")
    finally:
        shutil.rmtree(folder)
    assert not home.settings.models.exists()


@pytest.mark.parametrize(
    ("source", "words"), [("starter", "comes with Whetstone"), (".", "is a folder on this machine")]
)
def test_what_needs_no_import(home: Workspace, source: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        imports.prepare(home, source)


def test_the_command_line_inspects_and_imports(hub: FakeHub, home: Workspace) -> None:
    at = home.settings.home
    shown = whetstone(at, "models", "inspect", ID, "--json")
    card = json.loads(shown.stdout)
    assert (shown.returncode, card["id"].split("@")[0], card["must_accept"]) == (0, ID, False)
    assert card["kv_bytes_per_token"] == imports.inspect(home, ID).card.kv_bytes_per_token
    assert not home.settings.models.exists()
    done = process(at, "models", "import", ID, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] == "succeeded"
    assert read_card(Path(document["path"]), as_imported=True).id == document["model"]["id"]
    listed = whetstone(at, "models", "inspect", document["path"], "--json")
    assert json.loads(listed.stdout)["licence"] == "apache-2.0"


def test_the_command_line_refuses_in_one_sentence(hub: FakeHub, home: Workspace) -> None:
    for arguments in (["org/none"], [ID, "--revision", "v9"], ["no such/thing!"]):
        assert one_sentence(whetstone(home.settings.home, "models", "import", *arguments))
    assert jobs.listing(home) == []


def test_ctrl_c_says_what_is_kept(hub: FakeHub, home: Workspace) -> None:
    environment = {**os.environ, "WHETSTONE_HOME": str(home.settings.home)}
    own = ["env", "--default-signal=INT"]  # where the tests themselves run in the background it is ignored
    command = [*own, sys.executable, "-m", "backend.cli.main", "models", "import", ID]
    hub.fault(stand_after=1)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        eventually("the first bytes", lambda: fetched(home) > 0)
        process.send_signal(signal.SIGINT)
        _, reported = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted. The import was cancelled. What was fetched is kept in" in reported


def test_a_prefix_of_s3_becomes_a_folder(home: Workspace, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    with running("s3.py") as address:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "secret-of-aws",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.Session().client("s3")
        client.create_bucket(Bucket="models")
        for path in model.iterdir():
            client.upload_file(str(path), "models", f"team/tiny/{path.name}")
        ended = until_ended(home, submit(home, "s3://models/team/tiny").id)
        assert ended.state is JobState.SUCCEEDED, ended.error
        card = models.resolve(home, ended.result["path"])
        assert card.id.startswith("s3://models/team/tiny@")
        assert card.revision == read_card(model).revision
        client.put_object(Bucket="models", Key="team/tiny/LICENSE", Body=b"changed")
        shutil.rmtree(ended.result["path"])
        stale = jobs.clone(home, ended.id)
        supervisors.ensure_running(home)
        assert "has changed since this import was requested" in str(until_ended(home, stale.id).error)
    supervisors.stop(home)
    assert [p for p in home.settings.home.rglob("*") if p.is_file() and b"secret-of-aws" in p.read_bytes()] == []
