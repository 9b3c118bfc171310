"""GGUF files of model folders: what is written, read by the code that imports such files, is what the folder has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.catalog.cards import gguf
from backend.domain.errors import InvalidModel
from backend.engines.gguf import convert, export, quantize, writer
from backend.layered import dequantize
from tests.helpers.quantizing import run
from tests.tiny import tiny_llama

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FOLDERS = {
    "llama": {},
    "llama3": {"rope_parameters": LLAMA3, "tied": False},
    "mistral": {"family": "mistral", "sliding_window": None},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
STORED = {
    "rtn": ({"method": "rtn", "bits": 4, "group_size": 32, "symmetric": True}, "Q4_0"),
    "zero points": ({"method": "rtn", "bits": 4, "group_size": 64, "symmetric": False}, "Q4_1"),
    "w8a8": ({"method": "w8a8", "bits": 8, "group_size": None, "symmetric": True}, "Q8_0"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_comes_back_from_its_file(kind: str, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", **FOLDERS[kind])
    file = tmp_path / "model.gguf"
    source = writer.open_source(folder, kind)
    writer.write(file, source, lambda tensor: writer.plain_form(source, tensor), file_type="MOSTLY_BF16")

    # The import computes every layer twice, and compares the tokenizer with the file's own rules.
    conversion = gguf.read_model(file).conversion
    back = tmp_path / "back"
    back.mkdir()
    convert.convert([file], back, conversion, 16 * 10**9)
    weights, own = load_file(back / "model.safetensors"), load_file(folder / "model.safetensors")
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)


@pytest.mark.parametrize("name", STORED)
def test_an_artifact_keeps_its_numbers_in_a_file(name: str, tmp_path: Path) -> None:
    query, kind = STORED[name]
    folder = tiny_llama(tmp_path / "model")
    run(folder, tmp_path / "artifact", **query)
    answer = export.export(tmp_path / "artifact", "tiny", tmp_path / "tiny.gguf")
    assert answer["types"][kind] == 14 and answer["difference"] <= 1
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["tiny.gguf"]

    # The dequantized file computes what the artifact does.
    quantize.write_dequantized(
        tmp_path / "artifact",
        tmp_path / "tiny.gguf",
        gguf.read_model(tmp_path / "tiny.gguf").conversion,
        tmp_path / "b",
    )
    ours, written = dequantize.open_plain(tmp_path / "artifact"), load_file(tmp_path / "b" / "model.safetensors")
    for weight in ours.plain():
        torch.testing.assert_close(written[weight].float(), ours.one(weight).float(), rtol=0.01, atol=1e-3)


def test_what_a_file_cannot_state_is_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(InvalidModel, match="activation function is gelu"):
        writer.open_source(folder, "tiny")
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.extra.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(InvalidModel, match=r"has the tensor model\.extra\.weight"):
        writer.open_source(folder, "tiny")
