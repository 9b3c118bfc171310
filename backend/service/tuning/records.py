"""Searches as files of the home: what was asked, the steps that were begun, and how a search ended.

The jobs themselves are the record of what came of a step. Each step has a submission key of its own, so it is queued
at most once whoever advances the search, and however often.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from backend import files
from backend.domain.errors import NotFound
from backend.domain.frozen import Frozen
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Make, Measure
from backend.domain.tuning.stacks import Stack
from backend.service.workspace import Workspace

FOLDER = "tunings"
RECORD, LOCK = "search.json", "search.lock"
ID = re.compile(r"t-[0-9a-f]{10}")
"""An id comes from an address, so nothing else may become part of a path."""


class StepRecord(Frozen):
    """A step and its job; `failure` in place of a job that could not be submitted."""

    step: Make | Measure
    job: str | None = None
    failure: str | None = None


class SearchRecord(Frozen):
    """Everything of a search that its jobs do not say."""

    id: str
    request: TuneRequest
    title: str
    model_path: str
    """The source of the model in evaluations."""
    owner: str
    created_at: datetime
    baseline: Stack
    stacks: tuple[Stack, ...]
    rivals: tuple[Stack, ...] = ()
    """Stacks of auto_tune, where the winner is held against it."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Why weights cannot be made or served here, by their title."""
    steps: tuple[StepRecord, ...] = ()
    stopped: bool = False
    resumed: int = 0
    """Times that it was resumed, since a step that begins again has another job."""
    ended: str | None = None
    """Why it ended; None while it may go on."""


def new_id() -> str:
    return f"t-{secrets.token_hex(5)}"


def now() -> datetime:
    return datetime.now(UTC)


def folder(workspace: Workspace) -> Path:
    return workspace.settings.home / FOLDER


def write(workspace: Workspace, record: SearchRecord) -> None:
    place = folder(workspace) / record.id
    place.mkdir(parents=True, exist_ok=True)
    files.write(place / RECORD, record.model_dump_json(indent=1))


def read(workspace: Workspace, search_id: str) -> SearchRecord:
    """Raises NotFound."""
    file = folder(workspace) / search_id / RECORD
    try:
        if ID.fullmatch(search_id) is None:
            raise ValueError("no id of a search")
        return SearchRecord.model_validate_json(file.read_bytes())
    except (OSError, ValueError, ValidationError):
        known = ", ".join(list_ids(workspace)[:3]) or "none"
        raise NotFound(f"There is no search `{search_id[:40]}` here: there is {known}.") from None


def list_ids(workspace: Workspace) -> list[str]:
    """Return the ids of all searches, the last changed first."""
    places = [file.parent for file in folder(workspace).glob(f"t-*/{RECORD}")]
    return [place.name for place in sorted(places, key=lambda place: -(place / RECORD).stat().st_ctime_ns)]


def read_all(workspace: Workspace) -> list[SearchRecord]:
    """Return all searches, the newest first; one that this version cannot read is left out."""
    readable = []
    for search_id in list_ids(workspace):
        with suppress(NotFound):
            readable.append(read(workspace, search_id))
    return sorted(readable, key=lambda record: record.created_at, reverse=True)


@contextmanager
def changing(workspace: Workspace, search_id: str) -> Iterator[SearchRecord]:
    """Yield the record while no other process of this machine changes it. Raises NotFound."""
    read(workspace, search_id)
    with files.exclusive(folder(workspace) / search_id / LOCK):
        yield read(workspace, search_id)
