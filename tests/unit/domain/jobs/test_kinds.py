"""The table of job kinds names every kind, its specification and its worker."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest

from backend.domain.jobs.jobs import JobKind, JobSpec
from backend.domain.jobs.kinds import KINDS


def test_every_kind_has_a_row_with_the_specification_of_its_name() -> None:
    assert set(KINDS) == set(JobKind)
    assert {row.specification for row in KINDS.values()} == set(get_args(get_args(JobSpec)[0]))
    for kind, row in KINDS.items():
        assert row.specification.model_fields["kind"].default == kind


@pytest.mark.parametrize("worker", [row.worker for row in KINDS.values() if row.worker])
def test_every_worker_module_runs_a_specification(worker: str) -> None:
    assert callable(importlib.import_module(f"backend.worker.kinds.{worker}").run)
