"""A payoff map with a real vLLM, as small as one can be: synthetic acceptance works on this processor, and costs
follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import channel as form
from backend.channel import JobChannel
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftProbe, PayoffMap
from backend.domain.recipe.recipe import ORIGINAL, Serving
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.worker.kinds import payoff as kind
from backend.worker.resources import PeakMemory

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]


@pytest.mark.timeout(600)
def test_a_map_of_the_starter(home: Workspace, tmp_path: Path) -> None:
    request = measuring.prepare(
        home, "starter", (1, 2), rounds=1, serving=Serving(enforce_eager=True, max_model_len=1024)
    )
    spec = PayoffSpec.model_validate(
        {**request.model_dump(), "probes": (DraftProbe(hidden=64, layers=1, tokens=3, acceptance=0.5),)}
    )
    assert spec.weights == draft_payoff.weights_hash(ORIGINAL)
    channel = JobChannel(tmp_path / "j-1" / "1")
    for name in (form.EVENTS, form.WORK):
        (tmp_path / "j-1" / "1" / name).mkdir(parents=True)
    with PeakMemory() as memory:
        payoff_map = PayoffMap.model_validate(kind.run(spec, channel, memory)["map"])
    assert [(point.streams, point.tokens) for point in payoff_map.points] == [(1, 0), (2, 0), (1, 3), (2, 3)]
    guessed = [point for point in payoff_map.points if point.draft]
    assert {point.draft.parameters for point in guessed if point.draft} == {
        draft_payoff.draft_parameters(4096, 64, 1, 128)
    }
    # 0.5 + 0.25 + 0.125 accepted tokens a step, counted over 32 steps a stream and more: four deviations
    for point in guessed:
        assert point.accepted is not None and 0.1 < point.accepted < 1.7
        assert point.relative > 0 and point.token_relative is not None and point.token_relative > 0
    assert payoff_map.error is None, "one server does not tell how wrong its prediction is"
    assert not list(channel.resume("slots").glob("*.json")), "nobody goes on from a job that has ended"
