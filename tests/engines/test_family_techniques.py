"""Techniques on every family and layout, each pair in the campaign: what was written is scored, and loses what its bits
cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality import scoring
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
YARDSTICKS = ("wanda", "gptq")
OTHERS = [name for name in TECHNIQUES if name not in YARDSTICKS]


def lost(source: Path, out: Path, options: dict[str, Any]) -> float:
    """Mean KL of the checkpoint that is written."""
    request = QuantizeRequest(model_dir=source, out_dir=out, samples=8, length=32, calibration_texts=[TEXT], **options)
    quantize(request, NoProgress())
    return float(scoring.score(source, out, TEXT * 2, length=32, progress=NoProgress())["kl_mean"])


def in_turn(number: int) -> tuple[str, ...]:
    """For the family of that number the yardsticks and two of the others, which four families after it meets again."""
    first = 2 * number % len(OTHERS)
    return (*YARDSTICKS, *OTHERS[first : first + 2])


def costs_what_it_should(folder: Path, kind: str, names: Iterable[str]) -> None:
    """A fold, a transposition or a scale gone wrong costs more than half of the weights do."""
    source = tiny(folder / "source", kind)
    kl = {name: lost(source, folder / name, TECHNIQUES[name]) for name in names}
    assert all(value > 0 for value in kl.values()), kl
    assert all(value < kl["wanda"] / 2 for name, value in kl.items() if name not in {"wanda", "sparsegpt-gptq"}), kl
    assert kl.get("sparsegpt-gptq", 0) < kl["wanda"], kl
    assert all(value < 1.2 * kl["gptq"] for name, value in kl.items() if name in FINE), kl


COVERING = {kind: in_turn(number) for number, kind in enumerate(KINDS)}


@pytest.mark.parametrize(("kind", "names"), COVERING.items(), ids=list(COVERING))
def test_two_techniques_in_turn_cost_about_what_they_should(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    costs_what_it_should(tmp_path, kind, names)


def test_each_technique_is_tried_on_five_families_or_more() -> None:
    tried = Counter(name for names in COVERING.values() for name in names)
    assert set(COVERING) == set(KINDS) and set(tried) == set(TECHNIQUES) and min(tried.values()) >= 5


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
def test_every_technique_costs_about_what_it_should(tmp_path: Path, kind: str) -> None:
    costs_what_it_should(tmp_path, kind, TECHNIQUES)
