"""No plan of this machine is one that the native engine then refuses: every valid one is run, on models of awkward
sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.catalog.bundled import models
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe import recipe
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.methods import GGUF
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.engines.base import QuantizeRequest
from backend.engines.native.quantize import quantize
from tests import tiny

METHODS = [
    method
    for technique, method, engine, _ in supported()
    if technique == "quantize" and engine == "native" and method and method != GGUF
]
"""The methods that the native engine makes by itself: a GGUF file is made by llama.cpp's quantizer."""
SIZES: list[dict[str, Any]] = [
    {"hidden": 128, "intermediate": 256},
    {"hidden": 96, "intermediate": 160, "heads": 3, "kv_heads": 1},
]
"""The second is one that no usual group size but 32 divides."""


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes['hidden']}x{sizes['intermediate']}")
def test_what_the_planner_allows_the_engine_makes(sizes: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.tiny_llama(tmp_path / "model", layers=1, **sizes)
    card, created, suggested = models.folder_card(str(folder)), 0, 0
    for method in METHODS:
        chosen = recipe.read({"steps": [{"quantize": {"method": method}}]})
        verdict = check.check_recipe(card, chosen, TargetFacts())
        if verdict.plan is None:  # then what is suggested instead must be makeable
            assert verdict.suggestion is not None
            verdict, suggested = check.check_recipe(card, verdict.suggestion, TargetFacts()), suggested + 1
            assert verdict.plan is not None
        for step in verdict.plan.steps:
            run(folder, tmp_path / f"out-{created}", step.options)
            created += 1
    assert created >= len(METHODS)
    assert (suggested > 0) == (sizes["hidden"] == 96)


def run(model: Path, out: Path, planned: dict[str, Any]) -> None:
    """As the worker asks it (worker/optimize.py)."""
    request = QuantizeRequest(
        model_dir=model,
        out_dir=out,
        method=planned["method"],
        bits=planned["bits"],
        group_size=planned.get("group_size"),
        symmetric=planned["symmetric"],
        calibration_texts=[tiny.TEXT],
        samples=2,
        length=16,
    )
    assert quantize(request, NoProgress()).layers
