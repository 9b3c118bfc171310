"""An import job on its page: how much has arrived, how fast, and what went wrong."""

from __future__ import annotations

import pytest

from backend.domain.jobs.jobs import Event, ImportSpec, JobState
from backend.service import Workspace
from tests import studio

pytestmark = pytest.mark.without_supervisor

SPEC = ImportSpec(source="org/tiny", revision="a" * 40, endpoint="https://hub.example", bytes=4_100_000, licence="mit")


def test_a_running_import_tells_its_megabytes(studio_home: Workspace) -> None:
    events = [
        Event(
            kind="phase",
            phase="download",
            message="Downloading 4.1 MB",
            done=0,
            total=4_100_000,
            unit="bytes",
            progress=0.01,
        ),
        Event(
            kind="progress",
            phase="download",
            done=2_050_000,
            total=4_100_000,
            unit="bytes",
            progress=0.5,
            rate=1_500_000,
            eta_s=2,
        ),
    ]
    studio.supervisor(studio_home)
    job = studio.put(studio_home, SPEC, "Import org/tiny@aaaaaaaa", JobState.RUNNING, events=events)
    text = studio.says(studio.open_page("job", id=job.id))
    assert "2.05 MB of 4.1 MB, 1.5 MB/s" in text
    assert "Import org/tiny@aaaaaaaa" in text


def test_a_failed_import_says_why(studio_home: Workspace) -> None:
    error = "org/tiny is gated: ask for access at https://hub.example/org/tiny, then set HF_TOKEN."
    job = studio.put(studio_home, SPEC, "Import org/tiny@aaaaaaaa", JobState.FAILED, error=error)
    assert "org/tiny is gated" in studio.says(studio.open_page("job", id=job.id))
