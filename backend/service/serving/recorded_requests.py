"""Requests that went through the gateway -> a workload of the home, for evaluations, searches and the training of
drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from backend.domain.errors import InvalidWorkload
from backend.domain.figures import counted, listed
from backend.domain.frozen import Frozen
from backend.domain.roles import Action
from backend.domain.workload.recorded_requests import RecordedFilter, RequestKind, read_requests
from backend.domain.workload.workload import MOST_LINES
from backend.gateway.request_log import MOST_FILES
from backend.service import paths
from backend.service.evaluations import workloads
from backend.service.serving.gateway import LOG
from backend.service.workspace import Workspace

TAIL_BYTES = 1_000_000
"""The end of a log, in which content is looked for."""
NAME = "recorded"


class RecordedSummary(Frozen):
    """The workload that was made: its `name` and file, what it is made of, and how many requests were left out why."""

    name: str
    path: str
    kind: RequestKind
    requests: int
    conversations: int
    left_out: dict[str, int]


def make_workload(
    workspace: Workspace,
    name: str = NAME,
    *,
    log: str | None = None,
    model: str | None = None,
    key: str | None = None,
    last_s: float | None = None,
) -> RecordedSummary:
    """Make a workload of a gateway's request log and store it in the home. `last_s`: of the last so many seconds.

    Raises InvalidWorkload where there is no log, or no request in it that can be asked again; ReadOnly, NotAllowed.
    """
    # 1. The log: that of the home with its older files, or another file.
    workspace.check(Action.UPLOAD)
    files = [*_log_files(workspace.settings.home / LOG)] if log is None else _named(log)
    if not files:
        raise InvalidWorkload(
            "No gateway has logged a request here: start `whetstone gateway`, or name its log with {}.", "log"
        )
    # 2. Its requests.
    since = None if last_s is None else _moment(datetime.now(UTC) - timedelta(seconds=last_s))
    recorded = read_requests(_lines(files), RecordedFilter(model=model, key=key, since=since))
    if recorded.kind is None:
        raise InvalidWorkload(_nothing(recorded.left_out))
    # 3. The workload, the latest conversations where there are too many.
    lines = recorded.lines[-MOST_LINES:]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode("ascii")
    stored = workloads.save(workspace, f"{name}.jsonl", content)
    return RecordedSummary(
        name=stored,
        path=str(workloads.list_saved(workspace)[stored]),
        kind=recorded.kind,
        requests=recorded.requests,
        conversations=len(lines),
        left_out=recorded.left_out,
    )


def has_content(workspace: Workspace) -> bool:
    """Tell whether the end of the home's request log holds what was asked."""
    try:
        with (workspace.settings.home / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return b'"request": "' in file.read(TAIL_BYTES)
    except OSError:
        return False


def left_out_words(left_out: dict[str, int]) -> str:
    """Return `2 were left out: its content was not recorded (2)`; empty where none was."""
    if not left_out:
        return ""
    reasons = [f"{reason} ({count:,})" for reason, count in sorted(left_out.items(), key=lambda pair: -pair[1])]
    total = sum(left_out.values())
    return f"{total:,} {'was' if total == 1 else 'were'} left out: {'; '.join(reasons)}."


def _nothing(left_out: dict[str, int]) -> str:
    if not left_out:
        return "No request in the log fits: give another model, key or time."
    total = counted(sum(left_out.values()), "request")
    return (
        f"None of {total} in the log can be asked again ({listed(list(left_out))}): start the gateway with "
        "`whetstone gateway --log-content`, which records what is asked."
    )


def _named(log: str) -> list[Path]:
    """Raises InvalidWorkload."""
    file = paths.find_file(log)
    if file is None:
        raise InvalidWorkload(f"There is no file {log[:200]}: give a request log of a gateway.")
    return [file]


def _log_files(log: Path) -> Iterator[Path]:
    """Yield the files of a rotated log, the oldest first."""
    for number in range(MOST_FILES, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.is_file():
            yield older
    if log.is_file():
        yield log


def _lines(files: list[Path]) -> Iterator[bytes]:
    """Raises InvalidWorkload."""
    for file in files:
        try:
            with file.open("rb") as lines:
                yield from (line for line in lines if line.strip())
        except OSError as error:
            raise InvalidWorkload(f"{file.name} cannot be read ({error.strerror}): check its permissions.") from None


def _moment(time: datetime) -> str:
    """Return the time as the log writes it."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
