"""Files and folders in place whole or not at all: a full disk, a folder that may not be written, two writers at
once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from backend import files
from backend.domain.errors import DiskFull, WorkError

FULL = Path("/dev/full")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.write(path, "old")
    with pytest.raises(DiskFull), files.staged_file(path) as staged:
        staged.write_text("half")
        FULL.write_text("x")
    assert path.read_text() == "old" and names(tmp_path) == ["state.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"none/state\.json cannot be written .*check the folder"):
        files.write(tmp_path / "none" / "state.json", "text")


def test_an_old_file_stays_whole_when_writing_its_successor_fails(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("old")
    with pytest.raises(WorkError, match="cannot be written"), files.staged_file(path) as staged:
        staged.write_text("half")
        raise PermissionError(13, "Permission denied")
    assert path.read_text() == "old" and names(tmp_path) == ["config.json"]


def test_two_writers_never_share_a_temporary_name_and_one_of_them_wins(tmp_path: Path) -> None:
    path, texts = tmp_path / "one.txt", [str(number) * 200_000 for number in range(8)]
    threads = [threading.Thread(target=files.write, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts and names(tmp_path) == ["one.txt"]


def test_the_name_aside_keeps_the_ending_and_the_file_its_usual_mode(tmp_path: Path) -> None:
    with files.staged_file(tmp_path / "text.parquet") as staged:
        assert staged.suffix == ".parquet" and staged.name.startswith(".")
        staged.write_bytes(b"x")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "text.parquet").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_folder_appears_whole_and_the_first_of_two_stays(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "one"
    with files.staged_folder(folder) as first:
        (first / "a").write_text("first")
        with files.staged_folder(folder) as second:
            (second / "a").write_text("second")
        assert (folder / "a").read_text() == "second"
    assert (folder / "a").read_text() == "second" and names(folder.parent) == ["one"]


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), files.staged_folder(tmp_path / "one"):
        raise ValueError("no")
    assert names(tmp_path) == []
