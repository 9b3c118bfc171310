"""A studio in one file, and back: `whetstone backup` and `whetstone restore`.

The file is a tar. `tables/NAME.jsonl` holds the rows of one table as they were at one moment, whatever database they
were in, so that a SQLite home can become a PostgreSQL one. `files/` holds the manifests of the artifacts, with `files`
all of artifacts, evaluations and jobs but scratch. `backup.json` comes last but one: sizes and SHA-256 of the others;
`backup.sha256` is its own.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field, ValidationError

from backend import files as disk
from backend.artifacts.artifact_folder import MANIFEST
from backend.channel import WORK
from backend.domain.errors import NotNow, RequestError
from backend.domain.frozen import Frozen
from backend.domain.roles import Action
from backend.service.workspace import Workspace
from backend.store import queue, table_rows
from backend.store.database import HEAD
from backend.store.serving import endpoint_rows
from backend.store.tables import ArtifactRow, EvaluationRow

FORMAT = 1
HEAD_FILE, DIGEST_FILE = "backup.json", "backup.sha256"
FOLDERS = ("artifacts", "evaluations", "jobs")
CHUNK = 1 << 20
MOST_HEAD = 64 << 20
"""Bytes of `backup.json`."""


class BackupUnusable(RequestError):
    """The file is no whole backup of Whetstone: nothing was restored."""


class BackupMember(Frozen):
    size: int
    sha256: str


class Backup(Frozen):
    """The contents of a backup file. `rows` counts those of each table; `home` is where it was made."""

    format: int = FORMAT
    db_schema: str = HEAD
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    home: str
    with_files: bool
    rows: dict[str, int]
    members: dict[str, BackupMember]

    @property
    def bytes(self) -> int:
        return sum(member.size for member in self.members.values())


class RestoreResult(Frozen):
    """The result of a restore. `lost` are jobs that ran at the time of the backup; `held` are jobs that were queued and
    now wait for their release; `missing` are artifacts and evaluations whose files were not in the backup."""

    created: datetime
    rows: dict[str, int]
    lost: int
    held: int
    missing: int


class _Writer:
    """Adds members to a tar, and what each of them was."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar, self.members = tar, dict[str, BackupMember]()

    def add(self, name: str, source: Any, size: int, *, listed: bool = True) -> None:
        """`source`: a binary file at its beginning, of which `size` bytes are taken."""
        info, hashed = tarfile.TarInfo(name), _HashingReader(source)
        info.size, info.mode = size, 0o600
        self._tar.addfile(info, hashed)  # type: ignore[arg-type]
        if listed:
            self.members[name] = BackupMember(size=size, sha256=hashed.digest.hexdigest())


class _HashingReader:
    def __init__(self, source: Any) -> None:
        self._source, self.digest = source, hashlib.sha256()

    def read(self, size: int) -> bytes:
        chunk: bytes = self._source.read(size)
        self.digest.update(chunk)
        return chunk


def back_up(workspace: Workspace, path: Path, *, with_files: bool = False) -> Backup:
    """Write the file, whole or not at all, while jobs go on. Raises NotAllowed, NotNow where it is there, DiskFull,
    WorkError."""
    if path.exists():
        raise NotNow(f"{path} is there already: choose another name.")
    with workspace.changing(Action.BACK_UP, str(path)), disk.staged_file(path) as staged:
        staged.touch(0o600)
        with tarfile.open(staged, "w") as tar:
            return _write(workspace, _Writer(tar), with_files)


def _write(workspace: Workspace, out: _Writer, with_files: bool) -> Backup:
    counted = {}
    with workspace.store.snapshot() as session:
        for table in table_rows.list_backup_tables():
            with tempfile.TemporaryFile() as lines:
                counted[table.name] = 0
                for row in table_rows.dump(session, table):
                    lines.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
                    counted[table.name] += 1
                size = lines.tell()
                lines.seek(0)
                out.add(f"tables/{table.name}.jsonl", lines, size)
    for source in _files(workspace.settings.home, with_files):
        with suppress(FileNotFoundError), source.open("rb") as opened:  # one that is gone by now is left out
            name = f"files/{source.relative_to(workspace.settings.home).as_posix()}"
            out.add(name, opened, os.fstat(opened.fileno()).st_size)  # as long as it is at that moment
    backup = Backup(home=str(workspace.settings.home), with_files=with_files, rows=counted, members=out.members)
    text = backup.model_dump_json().encode()
    out.add(HEAD_FILE, io.BytesIO(text), len(text), listed=False)
    digest = hashlib.sha256(text).hexdigest().encode()
    out.add(DIGEST_FILE, io.BytesIO(digest), len(digest), listed=False)
    return backup


def _files(home: Path, with_files: bool) -> Iterator[Path]:
    """Yield the files that jobs published and their checkpoints; without `with_files` only the manifests."""
    if not with_files:
        yield from sorted((home / "artifacts").glob(f"[!.]*/{MANIFEST}"))
        return
    for folder in FOLDERS:
        for path in sorted((home / folder).rglob("*")):
            parts = path.relative_to(home).parts
            scratch = folder == "jobs" and len(parts) > 3 and parts[3] == WORK
            if (
                not scratch
                and not any(part.startswith(".") for part in parts)
                and not path.is_symlink()
                and path.is_file()
            ):
                yield path


def read(path: Path) -> Backup:
    """Return the contents of a backup after checking every byte. Raises BackupUnusable."""
    try:
        with tarfile.open(path, "r:") as tar:
            return _check_members(tar)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise _unusable_error(path, getattr(error, "strerror", None) or str(error) or "it is cut off") from None
    except ValidationError as error:
        raise _unusable_error(path, str(error.errors()[0]["msg"])) from None
    except ValueError as error:
        raise _unusable_error(path, str(error)) from None


def _unusable_error(path: Path, why: str) -> BackupUnusable:
    return BackupUnusable(f"{path} is no whole backup of Whetstone ({why}): nothing was restored.")


def _check_members(tar: tarfile.TarFile) -> Backup:
    """Raises ValueError with what is wrong."""
    # 1. Hash every member; the digest is the last one.
    members, head, digest = dict[str, BackupMember](), b"", b""
    for info in tar:
        opened = tar.extractfile(info) if info.isreg() else None
        if opened is None or digest:
            raise ValueError(f"{info.name[:80]} does not belong in it")
        if info.name == HEAD_FILE and info.size <= MOST_HEAD:
            head = opened.read()
        elif info.name == DIGEST_FILE and info.size == 64:
            digest = opened.read()
        else:
            digest_of_member = hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]
            members[_safe_path(info.name)] = BackupMember(size=info.size, sha256=digest_of_member)
    # 2. Compare with the list that the backup was written with.
    if hashlib.sha256(head).hexdigest().encode() != digest:
        raise ValueError("its end is missing or was changed")
    backup = Backup.model_validate_json(head)
    if backup.format != FORMAT or backup.db_schema != HEAD:
        raise ValueError(f"it is of another Whetstone, schema {backup.db_schema[:20]}; this one has {HEAD}")
    if members != backup.members:
        wrong = sorted(
            name for name in members.keys() | backup.members.keys() if members.get(name) != backup.members.get(name)
        )
        raise ValueError(f"{wrong[0][:80]} is not what was written")
    return backup


def _safe_path(name: str) -> str:
    parts = PurePosixPath(name).parts
    if (
        len(parts) < 2
        or parts[0] not in {"tables", "files"}
        or ".." in parts
        or (parts[0] == "files" and parts[1] not in FOLDERS)
    ):
        raise ValueError(f"{name[:80]} does not belong in it")
    return name


def _check_new(session: Any) -> None:
    if (table := table_rows.find_used_table(session)) is not None:
        raise NotNow(
            f"This home has {table} of its own: restore into a new one (WHETSTONE_HOME, and DATABASE_URL if set)."
        )


def restore(workspace: Workspace, path: Path) -> RestoreResult:
    """Put everything back into a home as new. Jobs that ran then are lost, to be resumed; jobs that waited then are
    held until somebody releases them (`queue.hold_restored`).

    A backup is trusted input: what it says is believed, but that no job of it starts by itself. Its rows appear in one
    transaction, after the files. Raises BackupUnusable, NotAllowed, and NotNow where the home was used.
    """
    # 1. Check the backup and that the home is new.
    workspace.check(Action.RESTORE)
    backup = read(path)
    with workspace.store.read() as session:
        _check_new(session)
    # 2. Put the files first.
    home = workspace.settings.home
    with tarfile.open(path, "r:") as tar:
        _put_files(tar, home)

        def work(session: Any) -> tuple[dict[str, int], int, int]:
            _check_new(session)  # again: many files take minutes, in which somebody may have begun to use it
            counted = {
                table.name: table_rows.restore(session, table, _rows(tar, table.name, backup.home, str(home)))
                for table in table_rows.list_backup_tables()
                if f"tables/{table.name}.jsonl" in backup.members
            }
            table_rows.request_rebuild(session)
            endpoint_rows.hold_restored(session)
            return counted, queue.mark_restored_lost(session), queue.hold_restored(session)

        # 3. Then the rows, in one transaction.
        try:
            counted, lost, held_jobs = workspace.change(
                Action.RESTORE, path.name, work, detail=f"made {backup.created:%Y-%m-%d %H:%M} UTC"
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise _unusable_error(path, str(error)) from None
    return RestoreResult(
        created=backup.created, rows=counted, lost=lost, held=held_jobs, missing=_missing_files(workspace)
    )


def _put_files(tar: tarfile.TarFile, home: Path) -> None:
    """Each folder of FOLDERS beside its place first. What is there already stays."""
    for info in tar:
        target = home / info.name.removeprefix("files/")
        if info.name.startswith("files/") and not target.exists() and (opened := tar.extractfile(info)) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with disk.staged_file(target, flush=False) as staged, staged.open("wb") as sink:
                shutil.copyfileobj(opened, sink, CHUNK)


def _rows(tar: tarfile.TarFile, table: str, old: str, new: str) -> Iterator[dict[str, Any]]:
    """The rows of a table, paths below the old home below the new one."""
    opened = tar.extractfile(f"tables/{table}.jsonl")
    assert opened is not None
    for line in opened:
        row: dict[str, Any] = json.loads(line)
        yield {name: _moved_path(value, old, new) if isinstance(value, str) else value for name, value in row.items()}


def _moved_path(value: str, old: str, new: str) -> str:
    return new if value == old else value.replace(f"{old}/", f"{new}/")


def _missing_files(workspace: Workspace) -> int:
    with workspace.store.read() as session:
        named = [
            path
            for table in (ArtifactRow, EvaluationRow)
            for _, path in table_rows.list_documents(session, table, "path")
        ]
    return sum(not any(file.name != MANIFEST for file in Path(path).glob("*")) for path in named if "://" not in path)
