"""The imported folder is held against the file's own tensors: what was dropped, turned round or misread is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards import gguf
from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.pretokenizers import tokenizer_plan
from backend.engines.gguf import convert, forward_check, weights
from backend.engines.gguf.gguf_file import GgufFile
from backend.engines.gguf.reference_forward import Reference
from tests.cases import ggufs

ROUNDING = 1e-4
LINEAR = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 1024}
EXPERTS = {"expert_count": 4, "expert_used_count": 2}
FREQUENT = {"context_length": 16384}
FORMS: dict[str, tuple[str, dict[str, Any], ggufs.Tensors]] = {
    "plain": ("llama", {}, ggufs.tensors()),
    "linear": ("llama", LINEAR, ggufs.tensors()),
    "linear without its type": ("llama", {"rope__scaling__factor": 4.0}, ggufs.tensors()),
    "yarn": ("llama", YARN, ggufs.tensors()),
    "llama 3": ("llama", FREQUENT, ggufs.tensors() | ggufs.llama3_frequencies()),
    "biases": ("llama", {}, ggufs.tensors(bias="qkvo")),
    "experts": ("llama", EXPERTS, ggufs.tensors(experts=4)),
    "qwen2": ("qwen2", {}, ggufs.tensors(bias="qkv")),
    "qwen3": ("qwen3", {"attention__key_length": ggufs.SIZE}, ggufs.tensors(qk_norm=True, tied=True)),
}


def convert_file(folder: Path, form: str, *, quantized: bool = False) -> tuple[Reference, Path]:
    """The file's own forward pass, and the model folder that was written from it."""
    architecture, changes, tensors = FORMS[form]
    path = folder / "x.gguf"
    ggufs.write(path, tensors, ggufs.keys(architecture, **changes), architecture, quantized=quantized)
    conversion, stored, target = gguf.read_model(path).conversion, GgufFile([path]), folder / "out"
    plan = tokenizer_plan(path.name, stored.values, {key: len(values) for key, values in stored.lists.items()})
    target.mkdir()
    weights.write(stored, conversion, target)
    convert._write_config(conversion, plan, target)
    return Reference(stored), target


@pytest.mark.parametrize("form", FORMS)
def test_both_compute_the_same_but_for_rounding(tmp_path: Path, form: str) -> None:
    reference, folder = convert_file(tmp_path, form, quantized=form in {"plain", "experts"})
    assert forward_check.check(reference, folder) < ROUNDING


def in_config(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        rope = config["rope_parameters"] | changes.pop("rope", {})
        (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": rope} | changes))

    return spoil


def in_weights(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        stored = load_file(folder / "model.safetensors")
        stored[name] = change(stored[name]).contiguous()
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def turned(tensor: Any) -> Any:
    """The rows of a projection in llama.cpp's order again."""
    return tensor.reshape(ggufs.HEADS, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


@pytest.mark.parametrize(
    ("form", "spoil"),
    [
        ("linear", in_config(rope={"rope_type": "default"})),
        ("linear", in_config(rope={"factor": 4.1})),
        ("yarn", in_config(rope={"rope_type": "linear"})),
        ("yarn", in_config(rope={"original_max_position_embeddings": 2048})),
        ("yarn", in_config(rope={"attention_factor": 1.0})),
        ("llama 3", in_config(rope={"rope_type": "default"})),
        ("plain", in_config(rope={"rope_theta": 10500.0})),
        ("plain", in_config(rms_norm_eps=1e-2)),
        ("plain", in_config(hidden_act="gelu")),
        ("experts", in_config(num_experts_per_tok=1)),
        ("plain", in_weights("model.layers.1.self_attn.q_proj.weight", turned)),
        ("plain", in_weights("lm_head.weight", lambda tensor: tensor * 1.01)),
        ("plain", in_weights("model.embed_tokens.weight", lambda tensor: tensor.flip(0))),
        ("biases", in_weights("model.layers.0.self_attn.o_proj.bias", lambda tensor: tensor * 0)),
        ("qwen3", in_weights("model.layers.0.self_attn.k_norm.weight", lambda tensor: tensor.flip(0))),
    ],
)
def test_a_misread_folder_is_refused(tmp_path: Path, form: str, spoil: Callable[[Path], None]) -> None:
    reference, folder = convert_file(tmp_path, form)
    spoil(folder)
    with pytest.raises(InvalidModel, match="does not compute what the file says"):
        forward_check.check(reference, folder)


def test_large_weights_come_in_shards_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SHARD_BYTES", 100_000)
    monkeypatch.setattr("backend.engines.gguf.gguf_file.PIECE_ELEMENTS", 1000)
    reference, folder = convert_file(tmp_path, "experts", quantized=True)
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert forward_check.check(reference, folder) < ROUNDING


@pytest.mark.parametrize("context", [1, 2, 8, 12, 13, 64, 4096, 131_072])
def test_positions_rise_and_stay_within_the_context(context: int) -> None:
    places = forward_check.places(context, forward_check.TOKENS)
    assert places[0] == 0 and all(one < other for one, other in pairwise(places))
    assert len(places) == forward_check.TOKENS and (
        context <= forward_check.TOKENS or places[-1] == min(context, forward_check.FAR) - 1
    )
