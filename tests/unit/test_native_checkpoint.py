"""Writing a checkpoint: each file whole or not at all, shards with an index, companions that older readers understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import DiskFull, ModelDamaged, RequestError, WorkError
from backend.engines.native import checkpoint
from tests.tiny import edit_json, tiny_llama

FULL = Path("/dev/full")


def some_tensors() -> dict[str, Any]:
    import torch

    return {name: torch.full((4, 8), float(number)) for number, name in enumerate("abcde")}


def test_small_weights_are_one_file_that_reads_back(tmp_path: Path) -> None:
    import torch

    size = checkpoint.write_weights(tmp_path, some_tensors())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert size == (tmp_path / "model.safetensors").stat().st_size
    read = dict(checkpoint.read_tensors(tmp_path))
    assert all(torch.equal(read[name], tensor) for name, tensor in some_tensors().items())


def test_weights_above_the_limit_are_sharded_with_an_index(tmp_path: Path) -> None:
    size = checkpoint.write_weights(tmp_path, some_tensors(), shard_bytes=300)
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == names
    index = json.loads((tmp_path / checkpoint.INDEX).read_text())
    assert index["metadata"]["total_size"] == 5 * 128
    assert index["weight_map"]["e"] == names[2]
    assert set(dict(checkpoint.read_tensors(tmp_path))) == set("abcde")
    assert size == sum(path.stat().st_size for path in checkpoint.weight_files(tmp_path))


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json.partial").symlink_to(FULL)
    with pytest.raises(DiskFull):
        checkpoint.write_json(tmp_path / "config.json", {"a": "b" * 100_000})
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_stays_whole_when_writing_its_successor_fails(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("old")

    def fail(aside: Path) -> None:
        aside.write_text("half")
        raise PermissionError(13, "Permission denied")

    with pytest.raises(WorkError, match="cannot be written"):
        checkpoint.write_file(path, fail)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    checkpoint.fresh(tmp_path / "new" / "folder")
    (tmp_path / "new" / "folder" / "x").write_text("x")
    with pytest.raises(RequestError, match="not empty"):
        checkpoint.fresh(tmp_path / "new" / "folder")


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelDamaged, match=r"model\.safetensors"):
        list(checkpoint.read_tensors(tmp_path))


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
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    assert AutoConfig.from_pretrained(out).rope_parameters == AutoConfig.from_pretrained(model).rope_parameters
    assert (out / "generation_config.json").read_bytes() == (model / "generation_config.json").read_bytes()
