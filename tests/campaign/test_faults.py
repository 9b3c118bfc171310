"""Every fault once on each database, on disk and in S3 by turns. Many seeds: `python -m benchmarks.faults`."""

from __future__ import annotations

import pytest

from tests.faults import campaign

pytestmark = [pytest.mark.campaign, pytest.mark.process]


@pytest.mark.timeout(900)
def test_no_fault_leaves_a_wrong_outcome_orphan_claim_or_unverified_artifact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = campaign.once()
    outcomes = list(campaign.run(chosen))
    with capsys.disabled():
        print(f"\n{campaign.summary(outcomes)}")
    assert sorted(each["seed"] for each in outcomes) == [case.seed for case in chosen]
    assert [each for each in outcomes if each["wrong"]] == []
