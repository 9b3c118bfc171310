"""Heads that predict further tokens stay beside the quantized model, byte for byte, and are excepted by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards import card
from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality.scoring import score
from tests.helpers.quantizing import GROUPS, run
from tests.tiny import TEXT, tiny_llama

HEADS = {
    "multi-token layers under a name of their own": ("mtp.layers.0.", "re:.*mtp.*", None),
    "multi-token layers inside the base model": ("model.mtp_layers.0.", "re:.*mtp_layers.*", None),
    "a layer behind the last one": ("model.layers.2.", "re:.*model[.]layers[.]2[.].*", 1),
    "an EAGLE head in the checkpoint": ("eagle_module.layers.0.", "re:.*eagle_module.*", None),
}
"""What the names begin with, the pattern that excepts them, and `num_nextn_predict_layers`."""


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def with_head(folder: Path, begin: str, further: int | None) -> Path:
    """A tiny model with a head of which one tensor is fp32, as its maker left it."""
    import torch
    from safetensors.torch import save_file

    model = tiny_llama(folder)
    generator = torch.Generator().manual_seed(1)
    head = {
        f"{begin}self_attn.q_proj.weight": torch.randn(128, 128, generator=generator).bfloat16(),
        f"{begin}eh_proj.weight": torch.randn(128, 256, generator=generator),
        f"{begin}enorm.weight": torch.ones(128).bfloat16(),
    }
    save_file(tensors(model) | head, model / "model.safetensors", metadata={"format": "pt"})
    if further:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": further}))
    return model


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_carried_byte_for_byte_and_excepted(tmp_path: Path, name: str) -> None:
    import torch

    begin, pattern, further = HEADS[name]
    model = with_head(tmp_path / "model", begin, further)
    assert card.read_card(model).layers == 2
    result = run(model, tmp_path / "out", method="awq", **GROUPS)
    # 1. The head is there, with its dtypes; the layers of the model are quantized.
    before, after = tensors(model), tensors(tmp_path / "out")
    head = [key for key in before if key.startswith(begin)]
    assert len(head) == 3 and len(result.layers) == 14
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in head)
    # 2. Servers are told not to look for quantized weights in it.
    assert pattern in json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["ignore"]
    assert any(entry["why"].endswith("carried byte for byte") for entry in result.kept_16bit)
    # 3. Scoring reads both.
    assert float(score(model, tmp_path / "out", TEXT, length=64, progress=NoProgress())["kl_mean"]) < 0.3


def test_a_layer_behind_the_last_that_nothing_announces_is_refused(tmp_path: Path) -> None:
    model = with_head(tmp_path / "model", "model.layers.2.", None)
    with pytest.raises(ModelDamaged, match=r"model\.layers\.2\."):
        run(model, tmp_path / "out", method="rtn", **GROUPS)
