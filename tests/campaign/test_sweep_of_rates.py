"""A search for the highest load that keeps an objective, with a server whose limit is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.running import running
from tests.integration.cli.calling import whetstone


@pytest.mark.alone
@pytest.mark.campaign
def test_a_sweep_ends_at_the_highest_level_that_keeps_the_objective(tmp_path: Path) -> None:
    """Two answers at a time of 0.3 s each: a third stream waits, so that two is the most within 0.1 s."""
    with running("exact_server.py", "--rate", 100, "--ttft-ms", 10, "--slots", 2) as url:
        options = ["--sweep", "ttft_p90<=100ms", "--concurrency", 2, "--requests", 40, "--max-tokens", 30]
        done = whetstone(tmp_path, "bench", url, *options, "--sweep-to", 4, "--json")
    assert done.returncode == 0, done.stderr
    measured_levels = json.loads(done.stdout)
    assert [level["concurrency"] for level in measured_levels] == [2, 3, 4]
    assert [level["slo"]["verdict"] for level in measured_levels] == ["kept", "missed", "missed"]
    assert [level["slo"]["highest"] for level in measured_levels] == [True, False, False]
    low, high = measured_levels[0]["slo"]["intervals"][0]
    assert 0.9 <= low <= measured_levels[0]["slo"]["shares"][0] <= high
