"""Some seeds of the faults over optimization jobs at SageMaker; `benchmarks/managed_faults.py` runs 200 and prints a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.managed import KINDS, campaign, table

pytestmark = [pytest.mark.campaign, pytest.mark.process]


def test_no_job_is_lost_doubled_or_left_running(tmp_path: Path) -> None:
    tallies, wrong = campaign(tmp_path, range(len(KINDS)))
    assert not wrong, "\n".join([table(tallies), *wrong])
