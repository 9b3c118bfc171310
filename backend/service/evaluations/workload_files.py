"""Workload files of any known format, and generated workloads -> our own lines, kept in the home by the hash of their
content.

Knows nothing of variants; `workloads` says which file is meant.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from pydantic import ValidationError

from backend import files, sandbox
from backend.catalog.text import token_lengths as tokenizers
from backend.catalog.text import workload_text
from backend.domain.errors import InvalidWorkload, TooDemanding
from backend.domain.roles import Action
from backend.domain.workload import generators, workload
from backend.domain.workload.row_report import ReadReport
from backend.domain.workload.trace_times import TimeUnit
from backend.domain.workload.workload import Workload
from backend.service.jobs import quotas
from backend.service.workspace import Workspace

MAX_BYTES, BYTES_PER_SECOND = 200_000_000, 10_000_000
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
BY_HASH, UPLOADS = "by-hash", "workloads"
GENERATING_S, GENERATED_LINES = 60, 2048
"""Seconds of processor time for each GENERATED_LINES lines that are cut to a length with a model's tokenizer."""
_GENERATING = Lock()


class FileRequest(NamedTuple):
    """Everything that decides how a file is read; `size` and `changed` identify its content."""

    path: str
    size: int
    changed: int
    columns: tuple[tuple[str, str], ...] = ()
    time_unit: TimeUnit = "auto"
    timed: bool = False
    """The times are needed."""


class WorkloadRequest(NamedTuple):
    """Everything that decides the bytes of a workload."""

    source: str
    file: FileRequest | None
    """None of a generated one."""
    changed: int
    """When the tokenizer changed."""
    tokenizer: str | None = None
    """A folder."""
    seed: int = 0
    context: int | None = None
    prompts: int = 0
    """Lines that a generated one is to have at the least."""


class Lines(NamedTuple):
    """A file in our own format. `content` holds lines, or those of a trace of lengths (`reading.lengths`)."""

    content: bytes
    reading: ReadReport


class PreparedWorkload(NamedTuple):
    content: bytes
    workload: Workload
    reading: ReadReport | None = None
    """None of a built-in workload."""


@lru_cache(maxsize=4)
def make_workload(request: WorkloadRequest) -> PreparedWorkload:
    """Return the checked workload. Raises InvalidWorkload, TooDemanding."""
    if request.file is None:
        return _generate(request)
    file = Path(request.file.path)
    if sandbox.is_ours(file):
        content = read(file)
        return PreparedWorkload(content, workload.parse_workload(file.stem, content))
    lines = _read_lines(request.file)
    if lines.reading.lengths is not None:
        return _with_prompts(request, file.stem, lines)
    return PreparedWorkload(lines.content, workload.parse_workload(file.stem, lines.content), lines.reading)


@lru_cache(maxsize=4)
def _read_lines(request: FileRequest) -> Lines:
    """Read the file and return its lines in our own format."""
    file = Path(request.path)
    content = read(file)
    if is_own(file, content):
        return _read_own(file, content)
    return own_lines(file.name, content, dict(request.columns), time_unit=request.time_unit, timed=request.timed)


def _tokenizer(request: WorkloadRequest) -> Path | None:
    """Return the tokenizer's file if it can be read."""
    file = Path(request.tokenizer) / tokenizers.TOKENIZER if request.tokenizer else None
    return file if file is not None and tokenizers.lengths(file.parent, [""]) is not None else None


def _with_prompts(request: WorkloadRequest, name: str, lines: Lines) -> PreparedWorkload:
    """Make prompts for a trace of lengths, in the sandbox."""
    # Generate in the sandbox, with time in proportion to the lines.
    file, reading = _tokenizer(request), lines.reading
    with _GENERATING:
        content = sandbox.run(
            workload_text.make_prompts,
            name,
            lines.content,
            reading.block_size,
            request.seed,
            str(file) if file else None,
            about=name,
            cpu_s=GENERATING_S * math.ceil(reading.rows / GENERATED_LINES),
        )
    # The name says where lengths are estimated, without a tokenizer.
    parsed = workload.parse_workload(name if file else f"{name}-estimated-lengths", content)
    return PreparedWorkload(content, parsed, reading.model_copy(update={"exact_lengths": file is not None}))


def is_long(request: WorkloadRequest) -> bool:
    """Tell whether the workload is generated with more lines than its kind has by default."""
    return request.file is None and request.prompts > generators.WORKLOAD_KINDS[request.source].prompts


def _generate(request: WorkloadRequest) -> PreparedWorkload:
    """Generate a workload; without a tokenizer lengths are estimated by characters, and its name says so."""
    file = _tokenizer(request)
    asking = (request.source, str(file) if file else None, request.seed, request.context, request.prompts)
    ours = file is None or sandbox.is_ours(file.resolve())
    if ours and not is_long(request):
        content = workload_text.generate(*asking)
    else:
        content = _generate_in_sandbox(request, asking, "" if ours else str(file))
    return PreparedWorkload(
        content, workload.parse_workload(request.source if file else f"{request.source}-estimated-lengths", content)
    )


def _generate_in_sandbox(request: WorkloadRequest, asking: tuple[Any, ...], foreign_file: str) -> bytes:
    """Generate in the sandbox, one at a time, since whoever opens a page chooses the number of lines."""
    cpu_s = GENERATING_S * math.ceil(max(request.prompts, 1) / GENERATED_LINES)
    with _GENERATING:
        try:
            return sandbox.run(workload_text.generate, *asking, about=foreign_file or request.source, cpu_s=cpu_s)
        except TooDemanding:
            if foreign_file:
                raise
            raise InvalidWorkload(
                f"{request.prompts:,} lines of the workload {request.source} cannot be made in {cpu_s:g} s: ask for "
                "less ({}, {}), or give a file.",
                "repeats",
                "requests",
            ) from None


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


def own_lines(
    name: str, content: bytes, columns: Mapping[str, str], *, time_unit: TimeUnit = "auto", timed: bool = True
) -> Lines:
    """Read the content of the file `name`. `timed`: its times are needed, so that their unit must be known.

    Raises InvalidWorkload with what is wrong, TooDemanding.
    """
    if len(content) > MAX_BYTES:
        raise too_large(name)
    parsed = sandbox.run(
        workload_text.read, name, content, dict(columns), time_unit, timed, about=name, cpu_s=_seconds(content)
    )
    head, _, lines = parsed.partition(b"\n")
    return Lines(lines, ReadReport.model_validate_json(head))


def is_own(file: Path, content: bytes) -> bool:
    """Tell whether the file is a stored workload in our own format. Its name or folder has the hash of its content, so
    a changed file is read anew."""
    return _hash_in_name(file) in {hashlib.sha256(content).hexdigest()[:digits] for digits in (8, 32)}


def is_kept(file: Path) -> bool:
    """Tell whether path and name are those of a workload that a home stores."""
    return _hash_in_name(file) is not None


def _hash_in_name(file: Path) -> str | None:
    """Return the start of the hash in the file's name or folder; None for other files."""
    if file.parent.parent.name == BY_HASH:
        return file.parent.name
    named = re.search(r"-([0-9a-f]{8})$", file.stem)
    return named[1] if named and file.parent.name == UPLOADS else None


def _read_own(file: Path, content: bytes) -> Lines:
    """Return our own file, with the stored report of how the upload was read."""
    lines = own_lines(f"{file.stem}.jsonl", content, {}, time_unit="s")
    try:
        return lines._replace(reading=ReadReport.model_validate_json(_reading_file(file).read_bytes()))
    except (OSError, ValidationError):
        return lines


def _reading_file(file: Path) -> Path:
    return file.with_suffix(".reading.json")


def _seconds(content: bytes) -> float:
    return sandbox.CPU_S + len(content) / BYTES_PER_SECOND


class Preview(NamedTuple):
    """`columns` of a table, in order, or the fields of JSON in no known format; `rows` the first of them. Both empty
    others."""

    columns: list[str]
    rows: list[dict[str, Any]]


def preview(name: str, content: bytes) -> Preview:
    """Return columns and first rows to show. Raises InvalidWorkload if the file cannot be read, TooDemanding."""
    return Preview(*sandbox.run(workload_text.preview, name, content, about=name, cpu_s=_seconds(content)))


def keep_by_hash(workspace: Workspace, name: str, content: bytes) -> Path:
    """Write the content once into the home, under its hash, and return the file. Raises ReadOnly."""
    workspace.check(Action.SUBMIT)
    folder = workspace.settings.home / UPLOADS / BY_HASH / hashlib.sha256(content).hexdigest()[:32]
    file = folder / f"{plain_name(name)}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
    return file


def store_upload(workspace: Workspace, name: str, content: bytes, reading: ReadReport | None = None) -> str:
    """Store an upload under its name and the start of its hash, and return that name.

    `reading` is kept with it.
    """
    stored = f"{plain_name(name)}-{hashlib.sha256(content).hexdigest()[:8]}"
    folder = workspace.settings.home / UPLOADS
    quotas.check_upload(workspace, len(content))
    with workspace.changing(Action.UPLOAD, stored, detail="workload"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{stored}.jsonl", content)
        if reading is not None:
            files.write(_reading_file(folder / f"{stored}.jsonl"), reading.model_dump_json().encode())
    return stored


def plain_name(name: str) -> str:
    """Return a name that is valid as a file name everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "workload"
