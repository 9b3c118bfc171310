"""A few seeded faults of jobs on a real Ray cluster. Many seeds: `python -m benchmarks.faults --where Ray`."""

from __future__ import annotations

import pytest

from tests.faults import campaign
from tests.faults.injuries import FAULTS

pytestmark = [pytest.mark.campaign, pytest.mark.process, pytest.mark.ray]
FEW = (
    "supervisor and worker killed",
    "node and supervisor killed",
    "node paused",
    "cancelled while its node dies",
    "head and supervisor killed",
    "torn request",
)


@pytest.mark.timeout(900)
def test_no_fault_of_a_node_or_a_head_leaves_a_wrong_outcome_or_anything_on_a_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = [
        campaign.Case(number, fault, campaign.DATABASES[number % 2], campaign.PLACES[number // 2 % 2], campaign.RAY)
        for number, fault in enumerate(fault for fault in FAULTS if fault.name in FEW)
    ]
    outcomes = list(campaign.run(chosen, lanes=1))
    with capsys.disabled():
        print(f"\n{campaign.summary(outcomes)}")
    assert sorted(each["seed"] for each in outcomes) == list(range(len(FEW)))
    assert [each for each in outcomes if each["wrong"]] == []
