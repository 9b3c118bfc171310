"""A program that is run to its end: its output is followed, its failure found in it, and it ends with us."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil
import pytest

from backend.domain.errors import DiskFull, WorkError
from backend.engines.finished_run import LONGEST, run_to_end, shorten_reason
from backend.engines.llama_cpp import programs

ERROR = re.compile("error")


def script(folder: Path, text: str) -> Path:
    """Return a program that runs this Python text."""
    file = folder / "program"
    file.write_text(f"#!{sys.executable}\n{text}\n")
    file.chmod(0o755)
    return file


def test_each_line_is_printed_followed_and_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = script(tmp_path, "import os, sys\nprint(os.getcwd())\nprint(os.environ['WORD'], file=sys.stderr)")
    followed: list[str] = []
    finished = run_to_end(
        [str(program)], folder=tmp_path, environment={**os.environ, "WORD": "b"}, follow=followed.append
    )
    assert (finished.code, sorted(finished.lines)) == (0, sorted([f"{tmp_path}\n", "b\n"]))
    assert followed == finished.lines and capsys.readouterr().out == "".join(finished.lines)


def test_the_lines_of_a_failure_are_those_that_say_so_else_all(tmp_path: Path) -> None:
    program = script(tmp_path, "print('begins')\nprint('error: first.')\nprint('error: last')\nprint('ends')\nexit(3)")
    finished = run_to_end([str(program)])
    assert finished.code == 3 and not finished.is_disk_full
    assert finished.matching_lines(ERROR) == ["error: first.", "error: last"]
    assert finished.matching_lines(re.compile("nothing")) == ["begins", "error: first.", "error: last", "ends"]
    silent = run_to_end([str(script(tmp_path, "exit(4)"))])
    assert silent.matching_lines(ERROR) == ["it ended with code 4"]
    assert shorten_reason("first.") == "first" and len(shorten_reason("x" * 1000)) == LONGEST


def test_the_program_ends_where_a_line_ends_the_job(tmp_path: Path) -> None:
    program = script(tmp_path, "import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()")
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_to_end([str(program)], follow=stop)
    assert not psutil.pid_exists(pids[0])


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        ("write failed: No space left on device", DiskFull, "disk filled up while quantizing"),
        (
            "error: one. \\nerror: unknown type Q9",
            WorkError,
            "llama.cpp failed while quantizing: error: unknown type Q9;",
        ),
        ("", WorkError, "llama.cpp failed while quantizing: it ended with code 1; the job's log"),
    ],
)
def test_a_quantizer_that_fails_is_one_sentence(
    tmp_path: Path, output: str, error: type[Exception], words: str
) -> None:
    program = script(tmp_path, f'print("{output}")\nexit(1)')
    with pytest.raises(error, match=re.escape(words)):
        programs.quantize(program, tmp_path / "model", tmp_path / "result", "Q9", threads=1)
