"""Writing a checkpoint: each file whole or not at all, shards with an index, companions that older readers
understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ModelDamaged, RequestError
from backend.engines.native.files import checkpoint
from backend.layered.weight_source import INDEX, WeightSource
from tests.tiny import edit_json, tiny_llama


def some_tensors() -> dict[str, Any]:
    import torch

    return {name: torch.full((4, 8), float(number)) for number, name in enumerate("abcde")}


def parts_of(folder: Path) -> list[Path]:
    parts = [folder / f"part-{name}" for name in some_tensors()]
    for path, (name, tensor) in zip(parts, some_tensors().items(), strict=True):
        checkpoint.write_part(path, {name: tensor})
    return parts


def test_small_parts_become_one_file_that_reads_back(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    (tmp_path / "out").mkdir()
    size = checkpoint.join(parts_of(tmp_path), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert size == (tmp_path / "out" / "model.safetensors").stat().st_size
    read = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in some_tensors().items())


def test_parts_above_the_limit_are_sharded_with_an_index(tmp_path: Path) -> None:
    import torch

    parts = parts_of(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    size = checkpoint.join(parts, out, shard_bytes=2 * parts[0].stat().st_size)
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in out.glob("*.safetensors")) == names
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"]["total_size"] == 5 * 128
    assert index["weight_map"]["e"] == names[2]
    source = WeightSource(out)
    assert all(torch.equal(tensor, some_tensors()[name]) for name, tensor in source.read("edcba"))
    assert size == source.bytes


def test_a_shard_or_a_tensor_that_is_missing_is_named_before_anything_is_read(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    checkpoint.join(parts, tmp_path, shard_bytes=2 * parts[0].stat().st_size)
    index = json.loads((tmp_path / INDEX).read_text())
    edit_json(tmp_path / INDEX, weight_map={**index["weight_map"], "f": "model-00001-of-00003.safetensors"})
    with pytest.raises(ModelDamaged, match=r"^f is listed in"):
        WeightSource(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelDamaged, match=r"model-00002-of-00003\.safetensors cannot be read"):
        WeightSource(tmp_path)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    checkpoint.make_empty_folder(tmp_path / "new" / "folder")
    (tmp_path / "new" / "folder" / "x").write_text("x")
    with pytest.raises(RequestError, match="not empty"):
        checkpoint.make_empty_folder(tmp_path / "new" / "folder")


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelDamaged, match=r"model\.safetensors"):
        WeightSource(tmp_path)


def test_config_and_tokenizer_are_readable_by_transformers_4_and_5(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    model = tiny_llama(tmp_path / "model", hidden=32, heads=2, kv_heads=1, intermediate=64)
    scaled = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    edit_json(model / "config.json", rope_parameters=scaled)
    out = tmp_path / "out"
    out.mkdir()
    checkpoint.write_companions(model, out)
    checkpoint.write_config(model, out, "bfloat16", {"quant_method": "none"})
    config = json.loads((out / "config.json").read_text())
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert config["rope_parameters"] == scaled
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert json.loads((out / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    text = "def add(first):\n    return 1"
    assert (
        AutoTokenizer.from_pretrained(out)(text)["input_ids"] == AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    )
    assert AutoConfig.from_pretrained(out).rope_parameters == AutoConfig.from_pretrained(model).rope_parameters
    assert (out / "generation_config.json").read_bytes() == (model / "generation_config.json").read_bytes()
