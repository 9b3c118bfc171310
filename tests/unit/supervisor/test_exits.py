"""How an exit that left no result is called."""

from __future__ import annotations

import signal
from pathlib import Path

from backend.domain.jobs.endings import POLICIES, Ending
from backend.supervisor.exits import exit_sentence


def test_a_worker_that_was_told_to_end_before_it_could_say_so_is_tried_again(tmp_path: Path) -> None:
    """As a node does that its cluster has given up: seed 5015 of the campaign on Ray."""
    ending, told = exit_sentence(-signal.SIGTERM, tmp_path)
    assert ending is Ending.STOPPED and ending in POLICIES and "stopped from outside" in told


def test_a_crash_that_was_seen_is_not_tried_again(tmp_path: Path) -> None:
    for code in (-signal.SIGKILL, -signal.SIGSEGV, 1):
        ending, told = exit_sentence(code, tmp_path)
        assert ending is Ending.CRASHED and ending not in POLICIES and "resume the job" in told
