"""Some seeds of the faults over jobs and endpoints at SageMaker; `benchmarks/managed_faults.py` runs 200 and prints a
table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import endpoint_life, job_life
from tests.faults.managed import campaign, table

pytestmark = [pytest.mark.campaign, pytest.mark.process]


def test_no_job_is_lost_doubled_or_left_running(tmp_path: Path) -> None:
    tallies, wrong = campaign(tmp_path, range(len(job_life.KINDS)), job_life.lives, job_life.KINDS)
    assert not wrong, "\n".join([table(tallies), *wrong])


def test_no_endpoint_is_lost_doubled_or_left_running(tmp_path: Path) -> None:
    tallies, wrong = campaign(tmp_path, range(len(endpoint_life.KINDS)), endpoint_life.lives, endpoint_life.KINDS)
    assert not wrong, "\n".join([table(tallies), *wrong])
