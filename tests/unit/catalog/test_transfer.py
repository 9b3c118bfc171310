"""Downloads over loopback with every fault of a network: resumed without fetching a byte twice, checked, stopped at
once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend import transfer
from backend.catalog.cards.source import RemoteSource
from backend.catalog.remote import selection, sources
from backend.domain.errors import DownloadFailed, InvalidModel
from tests.fakes.running import running
from tests.homes import eventually
from tests.hubs import FakeHub
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process

ID = "org/tiny"
QUICK = (0.01, 0.01, 0.01)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    tiny_llama(root / ID, hidden=256, intermediate=1024)
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(running_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    running_hub.fault()
    return running_hub


@pytest.fixture
def source(hub: FakeHub) -> RemoteSource:
    match = sources.find(ID)
    hub.forget()
    return match


def fetch(source: RemoteSource, folder: Path) -> list[int]:
    """Download what is wanted; what progress was told."""
    messages: list[int] = []
    transfer.download(source, selection.files_to_fetch(source), folder, messages.append, patience_s=QUICK)
    return messages


def whole(hub: FakeHub, folder: Path) -> bool:
    """The same files as the hub's, and nothing half-written beside them."""
    names = {path.name for path in folder.iterdir()}
    return names == {path.name for path in (hub.root / ID).iterdir()} and all(
        (folder / name).read_bytes() == (hub.root / ID / name).read_bytes() for name in names
    )


def test_everything_arrives_and_progress_ends_at_the_last_byte(
    hub: FakeHub, source: RemoteSource, tmp_path: Path
) -> None:
    fetched = fetch(source, tmp_path / "here")
    assert whole(hub, tmp_path / "here")
    assert fetched == sorted(fetched)
    assert fetched[-1] == sum(selection.files_to_fetch(source).values())


def test_a_connection_that_breaks_is_resumed_where_it_broke(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    hub.fault(drop_after=300_000, drops=4)
    fetch(source, tmp_path / "here")
    assert whole(hub, tmp_path / "here")
    starts = [entry["range"] for entry in hub.served("/cdn/")]
    assert starts == [None, *(f"bytes={300_000 * number}-" for number in (1, 2, 3, 4))]
    assert sum(entry["sent"] for entry in hub.served("/cdn/")) == (hub.root / ID / WEIGHTS).stat().st_size


class Interrupted(Exception):
    """What a cancelled job meets: raised in the thread that waits."""


def test_a_later_attempt_fetches_only_what_is_missing(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    folder, required = tmp_path / "here", selection.files_to_fetch(source)

    def interrupt(fetched: int) -> None:
        if fetched > 900_000:
            raise Interrupted

    hub.fault(slow_ms=100)
    with pytest.raises(Interrupted):
        transfer.download(source, required, folder, interrupt, patience_s=QUICK)
    assert not (folder / WEIGHTS).exists()
    here = transfer.present(folder, required)
    assert here > 900_000
    eventually("the hub to see that the connection is gone", lambda: len(hub.ended("/cdn/")) == 1)
    hub.fault()
    hub.forget()
    reported = fetch(source, folder)
    assert whole(hub, folder)
    assert reported[-1] == sum(required.values()) - here
    assert hub.sent() == reported[-1]


def test_a_server_that_ignores_ranges_still_gives_the_right_file(
    hub: FakeHub, source: RemoteSource, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / f"{WEIGHTS}.part").write_bytes((hub.root / ID / WEIGHTS).read_bytes()[:200_001])
    hub.fault(no_ranges=1)
    fetch(source, folder)
    assert whole(hub, folder)


def test_a_part_that_is_not_the_file_is_found_by_its_checksum(
    hub: FakeHub, source: RemoteSource, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / f"{WEIGHTS}.part").write_bytes(b"x" * 1000)
    with pytest.raises(DownloadFailed, match="another checksum"):
        fetch(source, folder)
    assert not (folder / f"{WEIGHTS}.part").exists()
    fetch(source, folder)
    assert whole(hub, folder)


def test_a_part_longer_than_the_file_is_begun_anew(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "config.json.part").write_bytes(b"x" * 100_000)
    fetch(source, folder)
    assert whole(hub, folder)


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_a_file_shorter_than_the_hub_says_is_refused(
    hub: FakeHub, source: RemoteSource, tmp_path: Path, file: str
) -> None:
    hub.fault(cut=file)
    with pytest.raises(InvalidModel, match=rf"{file} of org/tiny is shorter than the hub says"):
        fetch(source, tmp_path / "here")
    assert not (tmp_path / "here" / file).exists()


def test_a_file_longer_than_the_hub_says_is_refused(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    files_to_fetch = selection.files_to_fetch(source)
    with pytest.raises(DownloadFailed, match=r"config\.json is longer"):
        transfer.download(
            source, files_to_fetch | {"config.json": 10}, tmp_path / "here", lambda _: None, patience_s=QUICK
        )


def test_a_hub_that_is_busy_for_long_is_given_up_and_what_came_is_kept(
    hub: FakeHub, source: RemoteSource, tmp_path: Path
) -> None:
    files_to_fetch = selection.files_to_fetch(source)
    hub.fault(status=503, times=1000)
    with pytest.raises(DownloadFailed, match=r"status 503.*is kept: resume the job"):
        transfer.download(source, files_to_fetch, tmp_path / "here", lambda _: None, patience_s=QUICK)
    hub.fault()
    fetch(source, tmp_path / "here")
    assert whole(hub, tmp_path / "here")


def test_the_same_again_fetches_nothing(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    fetch(source, tmp_path / "here")
    hub.forget()
    assert fetch(source, tmp_path / "here")[-1] == 0
    assert hub.log() == []


def test_a_folder_that_cannot_be_written_ends_it(hub: FakeHub, source: RemoteSource, tmp_path: Path) -> None:
    (tmp_path / "here" / f"{WEIGHTS}.part").mkdir(parents=True)
    with pytest.raises(OSError, match=WEIGHTS):
        fetch(source, tmp_path / "here")
    shutil.rmtree(tmp_path / "here")
