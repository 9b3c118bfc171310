"""The page of a campaign of faults is true after every seed, whatever happens to the run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import faults


def test_a_run_that_is_cut_off_leaves_what_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = argparse.Namespace(
        seeds=3, first=0, lanes=2, faults="", where="Ray", wrong=0, out=tmp_path / "faults.md"
    )
    where = {"where": "Ray", "database": "SQLite", "place": "S3"}
    base = {"fault": "worker killed", **where, "jobs": {"succeeded": 2}, "seconds": 1.0, "log": "why"}

    def running() -> Iterator[dict[str, Any]]:
        yield {**base, "seed": 0, "wrong": []}
        assert "1 of 3 seeds" in arguments.out.read_text()
        yield {**base, "seed": 1, "wrong": ["an orphan"]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        faults.record(running(), arguments)
    text = arguments.out.read_text()
    assert "2 of 3 seeds" in text and "- seed 1, worker killed, Ray, SQLite, S3: ['an orphan']" in text
    assert capsys.readouterr().out.strip() == text.strip()
