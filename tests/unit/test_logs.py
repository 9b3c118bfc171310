"""The log: one JSON object a line, in UTC, without secrets, in a file that is rotated."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend import logs

SCRIPT = """
import logging, sys, threading
from pathlib import Path
from backend import logs
logs.start_logging(Path(sys.argv[1]), most_bytes=int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    logs.log_event("succeeded", f"number {number}", job="j-1", attempt=2)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
raise LookupError("nobody caught this")
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(log: Path, most_bytes: int, number: int) -> None:
    """With standard error going to the same file, as a supervisor is started."""
    with log.open("ab") as sink:
        command = [sys.executable, "-c", SCRIPT, str(log), str(most_bytes), str(number)]
        subprocess.run(command, stderr=sink, check=False)


@pytest.mark.process
def test_every_line_is_an_object_also_of_what_nobody_caught(tmp_path: Path) -> None:
    run(tmp_path / "x.log", 1_000_000, 1)
    first, thrown, last = lines(tmp_path / "x.log")
    assert first["time"].endswith("Z") and isinstance(first["process"], int)
    assert {name: first[name] for name in ("level", "event", "job", "attempt", "message")} == {
        "level": "info",
        "event": "succeeded",
        "job": "j-1",
        "attempt": 2,
        "message": "number 0",
    }
    assert (thrown["level"], last["level"], last["message"]) == ("critical", "critical", "nobody caught this")
    assert "ZeroDivisionError" in thrown["trace"] and "LookupError" in last["trace"]


@pytest.mark.process
def test_files_are_rotated_and_are_their_owners_alone(tmp_path: Path) -> None:
    run(tmp_path / "x.log", 2000, 200)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["x.log", *(f"x.log.{n}" for n in range(1, logs.MOST_FILES + 1))]
    assert {file.stat().st_mode & 0o777 for file in files[:-1]} == {0o600}
    assert all(file.stat().st_size < 4000 for file in files)
    assert lines(tmp_path / "x.log")[-1]["message"] == "nobody caught this"


def test_no_secret_stands_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_TOKEN_MINE", "correct horse")
    monkeypatch.setenv("MY_API_KEY", "abc")
    redacted = logs.redact(
        "correct horse; postgresql://me:pass@host/db; Bearer xyz123; hf_abcdefghijkl; abc; https://host/path; "
        "https://me@host"
    )
    assert redacted == "***; postgresql://***@host/db; Bearer ***; ***; abc; https://host/path; https://me@host"


def test_a_trace_is_redacted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "correct horse")
    try:
        raise ValueError("correct horse")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", ("correct horse",), sys.exc_info())
    assert "correct horse" not in logs.JsonLines().format(record)


@pytest.mark.process
def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path; from backend import logs; logs.start_logging(Path('{tmp_path}/no/x.log')); "
        f"logs.log_event('x', 'on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stderr and '"message": "on"' in done.stderr
