"""Another program holds the database: pages that only read go on, and what cannot be done is told in one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app import session
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from tests import simulated, studio

pytestmark = pytest.mark.without_supervisor

HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute(f"PRAGMA locking_mode={sys.argv[2]}")
held.execute("BEGIN EXCLUSIVE")
held.execute("UPDATE jobs SET title = title")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_database(home: Path, mode: str) -> Iterator[None]:
    """Another process in a transaction. NORMAL keeps other writers out, EXCLUSIVE readers too."""
    command = [sys.executable, "-c", HOLD, str(home / "whetstone.db"), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.communicate()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page wait for another writer 0.2 s at most."""
    monkeypatch.setattr(session, "PATIENCE_S", 0.2)


def messages_on(at: AppTest) -> list[str]:
    studio.check(at)
    return [str(reported.value).replace("\\", "") for reported in (*at.error, *at.toast)]


@pytest.mark.parametrize("page", ["home", "catalog", "jobs", "evaluate", "compare", "hardware"])
def test_pages_are_read_while_another_writes(studio_home: Workspace, page: str) -> None:
    studio.install_job(studio_home, JobState.SUCCEEDED)
    studio.evaluation(studio_home, simulated.evaluation())
    with lock_database(studio_home.settings.home, "NORMAL"):
        assert messages_on(studio.open_page(page)) == []


def test_a_click_that_cannot_be_written_is_told_and_can_be_done_again(studio_home: Workspace) -> None:
    at = studio.open_page("hardware")
    with lock_database(studio_home.settings.home, "NORMAL"):
        at.button(key="hardware_install-serve").click().run()
        assert len(messages_on(at)) == 1 and "locked by another program" in messages_on(at)[0]
        assert jobs.active(studio_home) == []
    at.button(key="hardware_install-serve").click().run()
    assert len(at.error) == 0 and [job.kind for job in jobs.active(studio_home)] == ["install"]


def test_a_database_held_before_the_studio_came_is_one_sentence_and_mends_itself(studio_home: Workspace) -> None:
    studio_home.store.engine.dispose()
    with lock_database(studio_home.settings.home, "EXCLUSIVE"):
        st.cache_resource.clear()
        at = studio.start()
        assert len(messages_on(at)) == 1 and "locked" in messages_on(at)[0]
    assert messages_on(at.run()) == [] and at.title[0].value == "Whetstone"
