"""Runs a program to its end with its output passed on, and finds in that output why it failed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DISK_FULL = "No space left on device"
LONGEST = 300
"""Characters of a reason."""


class FinishedRun(NamedTuple):
    """A program that ended: its exit code and what it printed."""

    code: int
    lines: list[str]

    @property
    def is_disk_full(self) -> bool:
        return any(DISK_FULL in line for line in self.lines)

    def matching_lines(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the lines that match; all that have words if none does; never empty."""
        written = [line.strip() for line in self.lines if line.strip()] or [f"it ended with code {self.code}"]
        return [line for line in written if pattern.search(line)] or written


def shorten_reason(line: str) -> str:
    """Return a line for the middle of a sentence: without its last point, cut after LONGEST characters."""
    return line.rstrip(".")[:LONGEST]


def run_to_end(
    command: Sequence[str],
    *,
    follow: Callable[[str], None] = lambda line: None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
) -> FinishedRun:
    """Run the command in `folder`, print each line of its output, and hand it to `follow`. The program ends with us if
    we are interrupted. It inherits the files of `pass_fds`. Raises OSError where it cannot be started."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=pass_fds,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
                follow(line)
        except BaseException:
            process.terminate()
            raise
    return FinishedRun(process.returncode, lines)
