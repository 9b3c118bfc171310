"""Quantized checkpoints are read as what they stand for, bit by bit, and refused where their numbers contradict
themselves."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.card import read_card
from backend.domain.errors import ImpossibleStack, InvalidModel, ModelDamaged
from backend.layered import dequantize
from backend.layered.outline import Outline
from tests.cases import stored
from tests.cases.models import edit, llama, rewrite
from tests.cases.stored import GPTQ_CONFIG, Layout, dense, store

V2 = {**GPTQ_CONFIG, "sym": False, "checkpoint_format": "gptq_v2"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
LAYOUTS: dict[str, tuple[Layout, dict[str, Any] | None, str]] = {
    "fp8, a matrix": (stored.fp8, None, ""),
    "fp8, an output": (partial(stored.fp8, shared="output"), None, ""),
    "fp8, a block": (partial(stored.fp8, shared="block", name="weight_scale_inv"), BLOCKS, "config.json"),
    "fp8, ModelOpt": (stored.modelopt_fp8, stored.MODELOPT, "hf_quant_config.json"),
    "int8": (stored.int8, None, ""),
    "gptq": (stored.gptq, GPTQ_CONFIG, "quantize_config.json"),
    "gptq, zero points as they are": (
        partial(stored.gptq, minus=0),
        {**GPTQ_CONFIG, "quant_method": "gptq"},
        "config.json",
    ),
    "gptq, ordered": (partial(stored.gptq, ordered=True), {**GPTQ_CONFIG, "desc_act": True}, "quantize_config.json"),
    "gptq, asymmetric": (partial(stored.gptq, symmetric=False), {**GPTQ_CONFIG, "sym": False}, "quantize_config.json"),
    "gptq, version 2": (partial(stored.gptq, symmetric=False, minus=0), V2, "quantize_config.json"),
    "gptq, 8 bits": (partial(stored.gptq, bits=8), {**GPTQ_CONFIG, "bits": 8}, "quantize_config.json"),
    "gptq, 2 bits": (partial(stored.gptq, bits=2), {**GPTQ_CONFIG, "bits": 2}, "quantize_config.json"),
    "awq": (stored.awq, None, ""),
    "awq, announced": (stored.awq, {"zero_point": True, "w_bit": 4, "version": "GEMM"}, "quant_config.json"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("plain"), **stored.SMALL)


def copied(plain: Path, folder: Path) -> Path:
    return Path(shutil.copytree(plain, folder))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_weight_is_what_its_format_says(name: str, plain: Path, tmp_path: Path) -> None:
    layout, announcement, file = LAYOUTS[name]
    model = store(copied(plain, tmp_path / "stored"), layout, announcement, file)
    source, expected = (
        dequantize.open_plain(model),
        dequantize.open_plain(dense(copied(plain, tmp_path / "dense"), layout)),
    )
    assert set(source.plain()) == set(expected.plain())
    assert source.dtypes == {"BF16"}, "of what is stored plainly"
    for tensor_name, tensor in source.read(source.plain()):
        assert tensor.float().equal(expected.one(tensor_name).float()), tensor_name
    card, before = read_card(model), read_card(plain)
    assert card.stored is not None and card.stored.readable and card.stored.sentence in card.notes
    assert (card.parameters, card.quantization_bits) == (before.parameters, card.stored.bits)
    assert before.stored is None and before.quantization is None and "stored" not in before.model_dump()


def test_a_matrix_whose_sizes_no_block_divides_is_read(tmp_path: Path) -> None:
    layout = partial(stored.fp8, shared="block", name="weight_scale_inv")
    sizes = {**stored.SMALL, "hidden_size": 192, "intermediate_size": 320}
    model = store(llama(tmp_path / "stored", **sizes), layout, BLOCKS)
    expected = dequantize.open_plain(dense(llama(tmp_path / "dense", **sizes), layout))
    assert all(
        tensor.float().equal(expected.one(name).float())
        for name, tensor in dequantize.open_plain(model).read(expected.plain())
    )


def test_packed_zero_points_that_readers_take_differently_are_refused(plain: Path, tmp_path: Path) -> None:
    """The same file announced as symmetric, and with a zero point of 0 in the older format."""
    model = store(
        copied(plain, tmp_path / "a"), partial(stored.gptq, symmetric=False), GPTQ_CONFIG, "quantize_config.json"
    )
    source = dequantize.open_plain(model)
    with pytest.raises(ModelDamaged, match="announced as symmetric, but its zero points"):
        dict(source.read(source.plain()))
    wrapped = partial(stored.gptq, symmetric=False, minus=0)
    other = store(copied(plain, tmp_path / "b"), wrapped, {**GPTQ_CONFIG, "sym": False}, "quantize_config.json")
    rewrite(other, lambda tensors: {n: t.fill_(-1) if n.endswith("qzeros") else t for n, t in tensors.items()})
    source = dequantize.open_plain(other)
    with pytest.raises(ModelDamaged, match="zero points of 0 stored as 15"):
        dict(source.read(source.plain()))


def test_groups_that_contradict_the_announced_order_are_refused(plain: Path, tmp_path: Path) -> None:
    model = store(
        copied(plain, tmp_path / "a"), partial(stored.gptq, ordered=True), GPTQ_CONFIG, "quantize_config.json"
    )
    source = dequantize.open_plain(model)
    with pytest.raises(ModelDamaged, match=r"`g_idx` of .* and `desc_act` contradict each other"):
        dict(source.read(source.plain()))
    rewrite(model, lambda tensors: {n: t + 9 if n.endswith("g_idx") else t for n, t in tensors.items()})
    source = dequantize.open_plain(model)
    with pytest.raises(ModelDamaged, match=r"`g_idx` of .* names groups that it does not have"):
        dict(source.read(source.plain()))


def test_scales_that_seem_to_divide_are_refused(plain: Path, tmp_path: Path) -> None:
    model = store(copied(plain, tmp_path / "a"), partial(stored.fp8, shared="block", name="weight_scale_inv"), BLOCKS)
    rewrite(model, lambda tensors: {n: 1 / t if n.endswith("scale_inv") else t for n, t in tensors.items()})
    source = dequantize.open_plain(model)
    with pytest.raises(ModelDamaged, match="not clear whether they multiply or divide"):
        dict(source.read(source.plain()))


def test_a_layout_without_a_reader_is_refused_before_anything_is_read(plain: Path, tmp_path: Path) -> None:
    model = store(copied(plain, tmp_path / "a"), stored.gptq)
    with pytest.raises(
        ImpossibleStack, match=r"already quantized. Its weights are stored as GPTQ, 4 bits \(announced nowhere\)"
    ):
        dequantize.open_plain(model)
    with pytest.raises(InvalidModel, match=r"announces awq, but .* is stored as GPTQ"):
        edit(model / "config.json", quantization_config={"quant_method": "awq"})
        dequantize.open_plain(model)


INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT8}},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {**INT8, "num_bits": "x"}}}},
            "does not read the quant",
        ),
        ({"config_groups": {}}, "no `config_groups` say what they are for"),
        ({"format": "naive-quantised"}, "no reader here for its format naive-quantised"),
    ],
)
def test_a_configuration_that_the_library_does_not_read_is_one_sentence(
    changes: dict[str, Any], words: str, plain: Path, tmp_path: Path
) -> None:
    good = store(copied(plain, tmp_path / "good"), stored.int8, COMPRESSED)
    expected = dequantize.open_plain(dense(copied(plain, tmp_path / "dense"), stored.int8))
    assert all(
        each.float().equal(expected.one(name).float())
        for name, each in dequantize.open_plain(good).read(expected.plain())
    )
    edit(good / "config.json", quantization_config={**COMPRESSED, **changes})
    with pytest.raises((ModelDamaged, ImpossibleStack), match=words):
        source = dequantize.open_plain(good)
        dict(source.read(source.plain()))


def with_tensor(plain: Path, folder: Path, name: str, **other: Any) -> Path:
    """A copy with one tensor more."""
    import torch

    model = copied(plain, folder)
    rewrite(model, lambda tensors: {**tensors, name: other.get("tensor", torch.ones(4, dtype=torch.bfloat16))})
    return model


UNREAD = [
    "model.layers.1.self_attn.q_norm.weight",
    "model.layers.0.mlp.up.lora_A.weight",
    "score.weight",
    "model.layers.2.x",
]


@pytest.mark.parametrize("name", UNREAD)
def test_a_tensor_that_nothing_would_read_ends_the_outline(name: str, plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged, match=f"{name} belongs to no part of a model of type llama"):
        Outline(dequantize.open_plain(with_tensor(plain, tmp_path / "a", name)))


def test_buffers_of_older_checkpoints_and_an_equal_tied_head_are_left_alone(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    tied = llama(tmp_path / "tied", **stored.SMALL, tie_word_embeddings=True)
    table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    model = with_tensor(tied, tmp_path / "a", "lm_head.weight", tensor=table.clone())
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    Outline(dequantize.open_plain(with_tensor(model, tmp_path / "b", frequencies, tensor=torch.ones(16))))
    other = with_tensor(tied, tmp_path / "c", "lm_head.weight", tensor=table + 1)
    with pytest.raises(
        ModelDamaged, match=r"ties the output head to the embedding .* but lm_head.weight is another matrix"
    ):
        Outline(dequantize.open_plain(other))


def test_a_missing_output_head_is_known_from_the_headers_and_before_any_layer(plain: Path, tmp_path: Path) -> None:
    model = copied(plain, tmp_path / "a")
    rewrite(model, lambda tensors: {name: each for name, each in tensors.items() if name != "lm_head.weight"})
    with pytest.raises(InvalidModel, match=r"output head \(lm_head.weight\) is missing"):
        read_card(model)
    with pytest.raises(ModelDamaged, match=r"lm_head.weight is missing"):
        Outline(dequantize.open_plain(model))
