"""Bytes of what a recipe makes: weights, cache and disk."""

from __future__ import annotations

from typing import Any

from backend.domain.needs import serving_memory as memory
from backend.domain.planner import estimate
from backend.domain.recipe import recipe
from tests.helpers.checked_cards import card

W8A8 = {"quantize": {"method": "w8a8"}}
AWQ = {"quantize": {"method": "awq"}}
PRUNE = {"prune": {"method": "wanda", "pattern": "2:4"}}


def test_the_weights_estimate_follows_the_precision() -> None:
    stacks: list[list[Any]] = [
        [],
        [W8A8],
        [AWQ],
        [PRUNE],
        [{"quantize": {"method": "kv_cache"}}],
        [{"quantize": {"method": "int8"}}],
        [{"quantize": {"method": "fp8"}}],
    ]
    sizes = [estimate.optimized_weights(card(), recipe.read({"steps": steps})) for steps in stacks]
    assert sizes[0] == sizes[3] == sizes[4] > sizes[1] > sizes[5] > sizes[2]
    assert sizes[6] == sizes[1]


def test_an_fp8_cache_of_the_artifact_halves_the_bytes_of_a_token() -> None:
    wide, narrow = (
        memory.kv_bytes(card(), memory.effective_serving(recipe.read({"steps": steps})))
        for steps in ([W8A8], [{"quantize": {"method": "w8a8", "kv_cache": "fp8"}}])
    )
    assert wide == 2 * narrow


def test_an_artifact_needs_more_disk_than_its_weights() -> None:
    sizes = [estimate.optimized_weights(card(), recipe.read({"steps": steps})) for steps in ([], [W8A8])]
    assert estimate.estimate_needs(card(), recipe.read({"steps": [W8A8]})).disk_bytes > sizes[1]
