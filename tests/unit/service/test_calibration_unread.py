"""What reads no calibration text asks for none."""

from __future__ import annotations

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.service.plans import calibration
from tests import studio


def recipe(*steps: dict[str, object], **more: object) -> Recipe:
    return Recipe.model_validate({"name": "r", "steps": list(steps), **more})


def test_rounding_to_nearest_asks_for_no_calibration_text(home: Workspace) -> None:
    model = studio.optimize_spec(home).model
    missing = {"quantize": {"method": "rtn", "calibration": "nowhere.txt"}}
    assert calibration.check_file(model, recipe(missing)) is None
    with pytest.raises(InvalidWorkload, match="no calibration file"):
        calibration.check_file(model, recipe({"quantize": {"method": "awq", "calibration": "nowhere.txt"}}))


@pytest.mark.parametrize(
    "steps",
    [
        [{"quantize": {"method": "rtn", "clip": True}}],
        [{"quantize": {"method": "rtn", "target_bits": 5.0}}],
        [{"quantize": {"method": "rtn", "engine": "llm-compressor"}}],
        [{"prune": {"method": "wanda"}}, {"quantize": {"method": "rtn"}}],
        [{"quantize": {"method": "gptq"}}],
        [{"prune": {"method": "wanda"}}],
    ],
)
def test_what_searches_prunes_or_measures_reads_it(steps: list[dict[str, object]]) -> None:
    assert quantize_step.reads_text(recipe(*steps))
