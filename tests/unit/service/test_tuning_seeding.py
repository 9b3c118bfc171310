"""What was measured before comes first, in its own places."""

from __future__ import annotations

from pathlib import Path

from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.stacks import Stack
from backend.service.models import models
from backend.service.tuning import seeding
from tests import homes, measured

STACKS = [
    Stack(weights="original", engine="llama.cpp"),
    Stack(weights="q8_0", engine="llama.cpp"),
    Stack(weights="original", engine="vllm"),
    Stack(weights="smoothquant", engine="vllm"),
]


def test_known_stacks_change_places_and_the_others_keep_theirs() -> None:
    rates = {STACKS[0].key: 10.0, STACKS[3].key: 40.0, STACKS[2].key: 20.0}
    assert seeding.exchange(STACKS, rates) == [STACKS[3], STACKS[1], STACKS[2], STACKS[0]]
    assert seeding.exchange(STACKS, {}) == STACKS


def test_only_what_was_measured_here_is_known(tmp_path: Path) -> None:
    workspace = homes.open_home(tmp_path / "home", probed=False)
    measured.probed(workspace)
    model, request = models.resolve(workspace, "starter"), TuneRequest(model="starter", streams=(1, 4))
    assert seeding.order_by_records(workspace, model, request, STACKS) == STACKS
    assert [seeding.known_rate(workspace, model, request, stack) for stack in STACKS] == [None] * 4
    measured.store(workspace)
    rates = [seeding.known_rate(workspace, model, request, stack) for stack in STACKS]
    assert [rate is not None for rate in rates] == [False, False, True, False]
