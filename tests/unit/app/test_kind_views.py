"""The table of what a job's page shows has a row for each kind of job."""

from __future__ import annotations

from app.jobs.kind_views import KIND_VIEWS
from backend.domain.jobs.jobs import JobKind


def test_every_kind_has_a_row() -> None:
    assert set(KIND_VIEWS) == set(JobKind)
