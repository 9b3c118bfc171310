"""Workload files of any known format -> our own lines, kept in the home by the hash of their content.

Knows nothing of variants; `workloads` says which file is meant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from backend import files, foreign
from backend.domain.errors import InvalidWorkload
from backend.domain.roles import Action
from backend.domain.workload import formats
from backend.domain.workload.workload import parse
from backend.service.workspace import Workspace

MAX_BYTES, BYTES_A_SECOND = 200_000_000, 10_000_000
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
BY_HASH = "by-hash"
SHOWN_ROWS = 5


def read(file: Path) -> bytes:
    """Raises InvalidWorkload where it is too large or cannot be read."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise too_large(file.name)
        return file.read_bytes()
    except OSError as error:
        raise InvalidWorkload(f"{file.name} cannot be read ({error.strerror}): check its permissions.") from None


def too_large(name: str) -> InvalidWorkload:
    return InvalidWorkload(f"{name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")


def own_lines(name: str, content: bytes, columns: Mapping[str, str]) -> bytes:
    """The content of the file `name` as our own JSONL. Raises InvalidWorkload with what is wrong first, TooDemanding."""
    if len(content) > MAX_BYTES:
        raise too_large(name)
    return foreign.call(convert, name, content, dict(columns), about=name, cpu_s=_seconds(content))


def _seconds(content: bytes) -> float:
    return foreign.CPU_S + len(content) / BYTES_A_SECOND


def convert(name: str, content: bytes, columns: dict[str, str]) -> bytes:
    """As `own_lines`, whatever it takes."""
    suffix = Path(name).suffix.lower()
    if suffix == ".csv":
        made = formats.from_csv(content, columns)
    elif suffix == ".parquet":
        made = formats.from_table(_parquet(name, content), columns)
    else:
        made = formats.from_json(Path(name).stem, content, columns)
    parse(Path(name).stem, made)
    return made


class Preview(NamedTuple):
    """`columns` of a table, in order, or the fields of JSON in no known format; `rows` the first of them. Both empty others."""

    columns: list[str]
    rows: list[dict[str, Any]]


def preview(name: str, content: bytes) -> Preview:
    """To be shown. Raises InvalidWorkload where it cannot be read, TooDemanding."""
    return Preview(*foreign.call(_preview, name, content, about=name, cpu_s=_seconds(content)))


def _preview(name: str, content: bytes) -> tuple[list[str], list[dict[str, Any]]]:
    columns = _columns(name, content)
    return columns, _first_rows(name, content) if columns else []


def _columns(name: str, content: bytes) -> list[str]:
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        return list(_table(name, content).column_names)
    if suffix != ".csv":
        return formats.unknown_fields(content)
    first = content.decode("utf-8-sig", "replace").partition("\n")[0].strip("\r")
    return [column for column in formats.names(first) if column]


def _first_rows(name: str, content: bytes) -> list[dict[str, Any]]:
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        rows: list[dict[str, Any]] = _table(name, content).slice(0, SHOWN_ROWS).to_pylist()
        return rows
    if suffix == ".csv":
        return list(islice(formats.csv_rows(content), SHOWN_ROWS))
    return list(islice(formats.objects(content), SHOWN_ROWS))


def keep(workspace: Workspace, name: str, content: bytes) -> Path:
    """The file of this content in the home, written once: what a job was asked stays as it was. Raises ReadOnly."""
    workspace.check(Action.SUBMIT)
    folder = workspace.settings.home / "workloads" / BY_HASH / hashlib.sha256(content).hexdigest()[:32]
    file = folder / f"{plain(name)}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
    return file


def store(workspace: Workspace, name: str, content: bytes) -> str:
    """Put an upload beside the others under its name and the start of its hash; that is what it can be asked for by."""
    stored = f"{plain(name)}-{hashlib.sha256(content).hexdigest()[:8]}"
    folder = workspace.settings.home / "workloads"
    with workspace.changing(Action.UPLOAD, stored, detail="workload"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{stored}.jsonl", content)
    return stored


def plain(name: str) -> str:
    """A name that can be that of a file everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "workload"


def _parquet(name: str, content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _table(name, content).to_pylist()
    return rows


def _table(name: str, content: bytes) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        table.column_names  # noqa: B018  a damaged name is found here
        return table
    except pyarrow.ArrowMemoryError:
        raise MemoryError from None
    except (pyarrow.ArrowException, OSError, ValueError):
        raise InvalidWorkload(f"{name} is not a Parquet file that can be read: write it anew.") from None
