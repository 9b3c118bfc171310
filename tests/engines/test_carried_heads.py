"""Heads that predict further tokens stay beside the quantized model, byte for byte, and are excepted by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.catalog.cards import card
from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality.scoring import score
from tests.helpers.quantizing import GROUPS, run
from tests.tiny import FURTHER_HEADS, TEXT, read_tensors, with_further_head


@pytest.mark.parametrize("name", FURTHER_HEADS)
def test_a_head_is_carried_byte_for_byte_and_excepted(tmp_path: Path, name: str) -> None:
    import torch

    begin, pattern, further = FURTHER_HEADS[name]
    model = with_further_head(tmp_path / "model", begin, further)
    assert card.read_card(model).layers == 2
    result = run(model, tmp_path / "out", method="awq", **GROUPS)
    # 1. The head is there, with its dtypes; the layers of the model are quantized.
    before, after = read_tensors(model), read_tensors(tmp_path / "out")
    head = [key for key in before if key.startswith(begin)]
    assert len(head) == 3 and len(result.layers) == 14
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in head)
    # 2. Servers are told not to look for quantized weights in it.
    assert pattern in json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["ignore"]
    assert any(entry["why"].endswith("carried byte for byte") for entry in result.kept_16bit)
    # 3. Scoring reads both.
    assert float(score(model, tmp_path / "out", TEXT, length=64, progress=NoProgress())["kl_mean"]) < 0.3


def test_a_layer_behind_the_last_that_nothing_announces_is_refused(tmp_path: Path) -> None:
    model = with_further_head(tmp_path / "model", "model.layers.2.", None)
    with pytest.raises(ModelDamaged, match=r"model\.layers\.2\."):
        run(model, tmp_path / "out", method="rtn", **GROUPS)
