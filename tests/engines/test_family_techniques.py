"""Every technique on every family and layout: what was written is scored, and loses about what its bits should cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import Silent
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality import quality
from tests.families import KINDS, tiny
from tests.tiny import TEXT

FOUR: dict[str, Any] = {"bits": 4, "group_size": 32}
EIGHT: dict[str, Any] = {"bits": 8, "symmetric": True}
HALF: dict[str, Any] = {"sparsity": 0.5, "pattern": "2:4"}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "wanda": {"method": None, "bits": 16, "symmetric": True, "pruning": Pruning(method="wanda", **HALF)},
    "sparsegpt-gptq": {"method": "gptq", "symmetric": True, "pruning": Pruning(method="sparsegpt", **HALF), **FOUR},
    "gptq": {"method": "gptq", "symmetric": True, "tuning": {"act_order": True, "clip": True}, **FOUR},
    "awq-autoawq-format": {"method": "awq", "symmetric": False, "tuning": {"format": "autoawq", "clip": True}, **FOUR},
    "fp8": {"method": "fp8", **EIGHT},
    "w8a8": {"method": "w8a8", **EIGHT},
    "w8a8-static": {"method": "w8a8", "tuning": {"activations": "static"}, **EIGHT},
    "smoothquant": {"method": "smoothquant", **EIGHT},
    "int8": {"method": "int8", **EIGHT},
    "kv_cache": {"method": "kv_cache", "bits": 16, "symmetric": True},
}
FINE = ("w8a8", "smoothquant", "int8")


def lost(source: Path, out: Path, options: dict[str, Any]) -> float:
    """Mean KL of the checkpoint that is written."""
    asked = QuantizeRequest(model_dir=source, out_dir=out, samples=8, length=32, calibration_texts=[TEXT], **options)
    quantize(asked, Silent())
    return float(quality.score(source, out, TEXT * 2, length=32, progress=Silent())["kl_mean"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_technique_costs_about_what_it_should(tmp_path: Path, kind: str) -> None:
    """A fold, a transposition or a scale gone wrong costs more than half of the weights do."""
    source = tiny(tmp_path / "source", kind)
    kl = {name: lost(source, tmp_path / name, options) for name, options in TECHNIQUES.items()}
    assert all(value > 0 for value in kl.values()), kl
    assert all(value < kl["wanda"] / 2 for name, value in kl.items() if name not in {"wanda", "sparsegpt-gptq"}), kl
    assert kl["sparsegpt-gptq"] < kl["wanda"], kl
    assert all(kl[name] < 1.2 * kl["gptq"] for name in FINE), kl
