"""Output of the command line: one JSON document on standard output with --json, else text; progress on standard
error."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from backend.present.tables.text import printable
from backend.present.tables.text import table as table
from backend.service import Workspace, unreadable_rows
from backend.service.jobs.jobs import JobView

err = sys.stderr
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]


def emit(document: Any, *, as_json: bool, text: str) -> None:
    """Print the document as JSON, which escapes controls, or the text."""
    out(json.dumps(as_plain_data(document), indent=1) if as_json else text)


def out(text: str, *, newline: bool = True) -> None:
    """Print on standard output, without control characters: the text may contain names that others chose."""
    typer.echo(printable(text), nl=newline)


def say(line: str) -> None:
    """Print on standard error at once, without control characters."""
    print(printable(line), file=sys.stderr, flush=True)


def say_left_out(workspace: Workspace, kind: unreadable_rows.DocumentKind) -> bool:
    """Name on standard error the rows that a list leaves out as unreadable. Returns whether there are any."""
    left_out = unreadable_rows.find_all(workspace, [kind])
    for row in left_out:
        say(f"Not in this list: {row.kind} {row.id}. {row.why}")
    return bool(left_out)


def next_command(*arguments: str) -> str:
    """Return the line that shows the next command, quoted for a shell."""
    return f"Next: {shlex.join(['whetstone', *arguments])}"


def as_plain_data(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json")
    if hasattr(document, "_asdict"):
        return as_plain_data(document._asdict())
    if isinstance(document, list | tuple):
        return [as_plain_data(item) for item in document]
    if isinstance(document, dict):
        return {key: as_plain_data(value) for key, value in document.items()}
    return document


LINE_EVERY_S, LINE_EVERY_SHARE = 30.0, 0.1
"""In a pipe, progress prints a line after this time or this share of the job, whichever comes first."""


class ProgressPrinter:
    """Prints a job's progress on standard error: on a terminal, one line that is rewritten.

    In a pipe it prints a line at each change of phase or state, and between them at intervals (`LINE_EVERY_S`,
    `LINE_EVERY_SHARE`).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: tuple[str | None, str | None] = (None, None)
        self._line, self._share, self._at = "", 0.0, clock()
        """The last line that was printed, the job's progress at that time, and the time."""

    def __call__(self, job: JobView) -> None:
        words = printable(job.words)
        if err.isatty():
            print(f"\r\x1b[K{words}", end="\n" if job.ended else "", file=err, flush=True)
        elif (job.phase, job.state) != self._phase or self._is_due(job):
            print(words, file=err, flush=True)
            self._line, self._share, self._at = job.words, job.progress or 0.0, self._clock()
        self._phase = (job.phase, job.state)

    def _is_due(self, job: JobView) -> bool:
        """Tell whether the job's text changed and enough time or progress has passed."""
        moved = (job.progress or 0.0) - self._share >= LINE_EVERY_SHARE
        return job.words != self._line and (moved or self._clock() - self._at >= LINE_EVERY_S)
