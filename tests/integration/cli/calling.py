"""The command line from a test: in the test's own process, which takes a moment, or as a process of its own, as a user
has it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from backend.cli.main import main


class Answer(NamedTuple):
    """What a call wrote, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def whetstone(home: Path, *arguments: object) -> Answer:
    """Run `whetstone ARGUMENTS` here, through its entry point."""
    out, err = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setenv("WHETSTONE_HOME", str(home))
        patch.setattr(sys, "argv", ["whetstone", *map(str, arguments)])
        main()
    assert isinstance(ended.value.code, int)
    return Answer(ended.value.code, out.getvalue(), err.getvalue())


def process(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in a process, for what is printed on the way out of a real one, and for jobs that are waited for."""
    environment = {**os.environ, "WHETSTONE_HOME": str(home)}
    command = [sys.executable, "-m", "backend.cli.main", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


def one_sentence(done: Answer | subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The sentence of a call that failed so, with nothing on standard output and no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("whetstone: ") and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, (
        done
    )
    return done.stderr
