"""How the command line speaks: one JSON document on standard output with --json, else text; progress on standard error."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import typer
from pydantic import BaseModel

from backend.service.jobs.jobs import JobView

err = sys.stderr


def emit(document: Any, *, as_json: bool, text: str) -> None:
    """Print the document as JSON, or the text."""
    typer.echo(json.dumps(plain(document), indent=1) if as_json else text)


def next_command(*arguments: str) -> str:
    """The line that says how to go on, quoted so that it can be pasted into a shell."""
    return f"Next: {shlex.join(['whetstone', *arguments])}"


def plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json")
    if hasattr(document, "_asdict"):
        return plain(document._asdict())
    if isinstance(document, list | tuple):
        return [plain(item) for item in document]
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items()}
    return document


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned by their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(header))]
    lines = [_line(list(header), widths, right), _line(["-" * width for width in widths], widths, right)]
    return "\n".join(lines + [_line(row, widths, right) for row in cells])


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)


class ProgressPrinter:
    """A job's progress on standard error: one line that is rewritten on a terminal, a line a change of phase elsewhere."""

    def __init__(self) -> None:
        self._phase: tuple[str | None, str | None] = (None, None)

    def __call__(self, job: JobView) -> None:
        if err.isatty():
            print(f"\r\x1b[K{describe(job)}", end="\n" if job.ended else "", file=err, flush=True)
        elif (job.phase, job.state) != self._phase:
            print(describe(job), file=err, flush=True)
        self._phase = (job.phase, job.state)


def describe(job: JobView) -> str:
    parts = [f"{job.title}: {job.state}"]
    if job.phase and not job.ended:
        parts.append(job.message or job.phase)
    if job.progress is not None and not job.ended:
        parts.append(f"{job.progress:.0%}")
    if job.eta_s is not None and not job.ended:
        parts.append(f"about {job.eta_s:.0f} s left")
    return ", ".join(parts)
