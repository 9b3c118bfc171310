"""`make audit`: what pip-audit's answers come to, and that an index which does not answer is said and is no failure."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.settings import CHECKOUT

SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
SKIPPED = {"name": "torch", "version": "2.0", "skip_reason": "not found on the index"}
BAD = {"name": "jinja2", "version": "3.0", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]] | None], tuple[int, Any]]:
    """Audits one lock with pip-audit's answer (None: no index); the exit code and what was kept."""
    main = runpy.run_path(str(CHECKOUT / ".ci" / "audit.py"))["main"]
    (tmp_path / "one.txt").write_text("numpy==2.0 --hash=sha256:0\n")
    monkeypatch.setitem(main.__globals__, "LOCKS", tmp_path)
    monkeypatch.setitem(main.__globals__, "KEPT", tmp_path / "build" / "audit.json")

    def run(answer: list[dict[str, Any]] | None) -> tuple[int, Any]:
        messages = (
            ("", "Traceback\nno route to the index") if answer is None else (json.dumps({"dependencies": answer}), "")
        )
        monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, *messages))
        return main(), json.loads((tmp_path / "build" / "audit.json").read_text())

    return run


def test_a_known_vulnerability_fails_and_is_named(audit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit([SOUND, SKIPPED, BAD]) == (1, {"one.txt": [SOUND, SKIPPED, BAD]})
    counts, named = capsys.readouterr().out.splitlines()
    assert (
        counts == "one.txt: 2 of 3 packages judged, 1 with known vulnerabilities"
        and named == "  jinja2 3.0: CVE-1, CVE-2"
    )
    assert audit([SOUND, SKIPPED])[0] == 0 and "nothing was audited" not in capsys.readouterr().out


@pytest.mark.parametrize("answer", [None, [SKIPPED]])
def test_an_index_that_does_not_answer_is_said_and_is_no_failure(
    audit: Any, capsys: pytest.CaptureFixture[str], answer: list[dict[str, Any]] | None
) -> None:
    assert audit(answer) == (0, {"one.txt": answer or []})
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "No service of vulnerabilities answered here, so nothing was audited."
    )
