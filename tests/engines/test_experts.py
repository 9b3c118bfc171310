"""Mixtures of experts: the experts alone in a format or beside another one, the router as it was, from checkpoints with
a matrix for each expert and from fused ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.engines.base import QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import open_plain
from tests.families import tiny
from tests.helpers.quantizing import GROUPS, run
from tests.tiny import TEXT

KINDS = ("mixtral", "qwen2-moe", "qwen3-moe")
ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.shared_expert_gate.weight")


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def quantization(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return document


def fused(model: Path, folder: Path) -> Path:
    """The same model as transformers 5 writes it with fused experts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder, save_original_format=False)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_experts_alone_are_quantized_and_all_else_stays_byte_for_byte(tmp_path: Path, kind: str) -> None:
    import torch

    model = tiny(tmp_path / "model", kind)
    result = run(model, tmp_path / "out", method="nvfp4", bits=4, outside_experts="16-bit")
    before, after = tensors(model), tensors(tmp_path / "out")
    # 1. What is no expert is as it was, the routers with it.
    outside = {name for name in before if ".experts." not in name and ".shared_expert." not in name}
    assert any(name.endswith(ROUTERS) for name in outside)
    assert all(torch.equal(before[name], after[name]) for name in outside)
    # 2. Every expert is packed, and the configuration excepts attention by name.
    assert all(f"{name.removesuffix('.weight')}.weight_packed" in after for name in before if ".experts." in name)
    assert "model.layers.0.self_attn.q_proj" in quantization(tmp_path / "out")["ignore"]
    assert {entry["why"] for entry in result.kept_16bit if "self_attn" in entry["name"]} == {"outside of the experts"}


@pytest.mark.parametrize(("method", "outside"), [("rtn", "fp8"), ("awq", "fp8_block"), ("nvfp4", "w8a8")])
def test_experts_and_other_linears_get_formats_of_their_own(tmp_path: Path, method: str, outside: str) -> None:
    model = tiny(tmp_path / "model", "qwen3-moe")
    groups = {"bits": 4} if method == "nvfp4" else GROUPS
    run(model, tmp_path / "out", method=method, outside_experts=outside, **groups)
    own, other = quantization(tmp_path / "out")["config_groups"].values()
    assert own["targets"] == ["Linear"] and own["weights"]["num_bits"] == 4
    assert "model.layers.0.self_attn.o_proj" in other["targets"] and other["weights"]["num_bits"] == 8
    assert not any(".experts." in target for target in other["targets"])
    # What transformers-free scoring reads back computes what the model did.
    quality = score(model, tmp_path / "out", TEXT, length=64, progress=NoProgress())
    assert float(quality["kl_mean"]) < 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_checkpoint_gives_the_bytes_of_one_with_a_matrix_for_each_expert(tmp_path: Path, kind: str) -> None:
    model = tiny(tmp_path / "model", kind)
    fused(model, tmp_path / "fused")
    assert any(name.endswith("experts.gate_up_proj") for name in tensors(tmp_path / "fused"))
    for source, out in ((model, "split"), (tmp_path / "fused", "joined")):
        run(source, tmp_path / out, method="fp8", bits=8, outside_experts="16-bit")
    written = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("split", "joined")]
    assert tensors(tmp_path / "split").keys() == tensors(tmp_path / "joined").keys()
    assert len(written[0]) == len(written[1])
    import torch

    pairs = (tensors(tmp_path / "split"), tensors(tmp_path / "joined"))
    assert all(torch.equal(pairs[0][name], pairs[1][name]) for name in pairs[0])


def test_a_fused_tensor_without_experts_is_refused_by_name(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder = fused(tiny(tmp_path / "model", "qwen3-moe"), tmp_path / "fused")
    whole = tensors(folder)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    save_file({**whole, name: torch.zeros(4, 128)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=name.replace(".", r"\.")):
        open_plain(folder)


class Warned(NoProgress):
    """Collects warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, *arguments: Any, **data: Any) -> None:
        self.warnings += arguments


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"method": "nvfp4", "bits": 4}, "input_global_scale"),
        ({"method": "w8a8", "bits": 8, "tuning": {"activations": "static"}}, "input_scale"),
    ],
)
def test_unseen_experts_are_counted_and_get_the_widest_scale_of_others(
    tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    # Eight tokens, two experts each: of sixteen experts some see none.
    model = tiny(tmp_path / "model", "qwen3-moe", layers=1, num_experts=16)
    values = {"calibration_texts": [TEXT], "samples": 1, "length": 8, **options}
    progress = Warned()
    quantize(QuantizeRequest(model_dir=model, out_dir=tmp_path / "out", **values), progress)
    # 1. One sentence says how many, and what to do.
    (warning,) = progress.warnings
    assert warning.partition(" ")[2].startswith("of 16 experts saw no token") and "`samples`" in warning
    unseen = int(warning.partition(" ")[0])
    assert 0 < unseen < 16
    # 2. Their scales are those of an expert that was seen, and not 1.
    stored = tensors(tmp_path / "out")
    scales = [float(stored[f"model.layers.0.mlp.experts.{number}.down_proj.{key}"]) for number in range(16)]
    widest = min(scales) if key == "input_global_scale" else max(scales)
    assert len(scales) == 16 and 1.0 not in scales and scales.count(widest) == unseen + 1
