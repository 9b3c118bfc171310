"""AutoAWQ's GEMM format read back: against a packing written out bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality import scoring
from backend.layered import dequantize
from tests.tiny import TEXT, tiny_llama

NIBBLES = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}
"""Output of eight -> its four bits, after AutoAWQ's order map 0 2 4 6 1 3 5 7."""


def packed(rows: list[list[int]]) -> list[list[int]]:
    """Numbers 0 to 15 [rows, out] as signed 32-bit words."""
    words = []
    for row in rows:
        created = []
        for start in range(0, len(row), 8):
            word = sum(row[start + place] << (4 * bits) for place, bits in NIBBLES.items())
            created.append(word - 2**32 if word >= 2**31 else word)
        words.append(created)
    return words


def test_numbers_zeros_and_scales_become_weights() -> None:
    import torch

    numbers = [[(3 * i + 5 * o) % 16 for o in range(16)] for i in range(8)]
    zeros = [[(o + g) % 16 for o in range(16)] for g in range(2)]
    scales = torch.tensor([[0.5 + 0.25 * o for o in range(16)], [1.0] * 16], dtype=torch.float16)
    weight = dequantize.dequantize_awq(
        torch.tensor(packed(numbers), dtype=torch.int32), torch.tensor(packed(zeros), dtype=torch.int32), scales
    )
    expected = [[(numbers[i][o] - zeros[i // 4][o]) * float(scales[i // 4][o]) for i in range(8)] for o in range(16)]
    assert weight.tolist() == expected


def gemm(source: Path, folder: Path) -> None:
    """The model with every linear rounded to whole numbers x 1/64 around zero point 8, groups of 32, in AutoAWQ's
    format."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if "_proj.weight" in name]:
        weight, linear = tensors.pop(name), name.removesuffix(".weight")
        numbers = ((weight.float() * 64).round() + 8).clamp(0, 15).int().T
        tensors[f"{linear}.qweight"] = torch.tensor(packed(numbers.tolist()), dtype=torch.int32)
        groups = len(numbers) // 32
        tensors[f"{linear}.qzeros"] = torch.tensor(packed([[8] * numbers.shape[1]] * groups), dtype=torch.int32)
        tensors[f"{linear}.scales"] = torch.full((groups, numbers.shape[1]), 1 / 64, dtype=torch.float16)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_bytes())
    config["quantization_config"] = {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_of_that_format_is_scored_as_its_dequantized_self(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "model")
    gemm(source, tmp_path / "awq")
    plain = tmp_path / "plain"
    plain.mkdir()
    tensors = {
        name: ((tensor.float() * 64).round() + 8).clamp(0, 15).sub(8).div(64).to(torch.bfloat16)
        if "_proj" in name
        else tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((source / "config.json").read_text())
    text = TEXT * 3
    ours = scoring.score(source, tmp_path / "awq", text, length=64, progress=NoProgress())
    reference = scoring.score(source, plain, text, length=64, progress=NoProgress())
    assert ours["scored"] == "dequantized" and ours["kl_mean"] > 1e-4
    assert ours["kl_mean"] == pytest.approx(reference["kl_mean"], rel=1e-6)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "model")
    gemm(source, tmp_path / "awq")
    tensors = load_file(tmp_path / "awq" / "model.safetensors")
    del tensors["model.layers.1.input_layernorm.weight"]
    save_file(tensors, tmp_path / "awq" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=r"awq .*model.layers.1.input_layernorm.weight is missing"):
        scoring.score(source, tmp_path / "awq", TEXT * 3, length=64, progress=NoProgress())
