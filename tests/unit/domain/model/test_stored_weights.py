"""Headers with any quantization are never taken for plain weights, whatever announces them; plain ones never for
quantized."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.cards.safetensors_header import BITS
from backend.domain.errors import InvalidModel
from backend.domain.model import announced_quantization, stored_weights
from backend.domain.model.stored_weights import FLOATS, StoredWeights
from tests.properties import examples


class Header(NamedTuple):
    """One tensor of a header."""

    dtype: str
    shape: tuple[int, ...]


Headers = dict[str, Header]
OUT, IN = 256, 512
LINEAR = "model.layers.0.mlp.up_proj"
PLAIN: Headers = {
    "model.embed_tokens.weight": Header("BF16", (1024, IN)),
    "model.norm.weight": Header("F32", (IN,)),
    "model.layers.0.input_layernorm.weight": Header("BF16", (IN,)),
    "model.layers.0.self_attn.q_proj.bias": Header("BF16", (OUT,)),
    "model.layers.0.self_attn.rotary_emb.inv_freq": Header("F32", (32,)),
}
LAYOUTS: dict[str, dict[str, Header]] = {
    "fp8, a matrix": {"weight": Header("F8_E4M3", (OUT, IN)), "weight_scale": Header("F32", ())},
    "fp8, an output": {"weight": Header("F8_E4M3", (OUT, IN)), "weight_scale": Header("BF16", (OUT, 1))},
    "fp8, a block": {"weight": Header("F8_E4M3", (OUT, IN)), "weight_scale_inv": Header("F32", (2, 4))},
    "fp8, no scale": {"weight": Header("F8_E5M2", (OUT, IN))},
    "mxfp8": {"weight": Header("F8_E4M3", (OUT, IN)), "weight_scale": Header("U8", (OUT, IN // 32))},
    "int8": {"weight": Header("I8", (OUT, IN)), "weight_scale": Header("F32", (OUT, 1))},
    "int8, ModelOpt": {
        "weight": Header("I8", (OUT, IN)),
        "weight_scale": Header("F32", (OUT,)),
        "pre_quant_scale": Header("F32", (IN,)),
    },
    "scales beside floats": {"weight": Header("BF16", (OUT, IN)), "weight_scale": Header("F32", (OUT, 1))},
    "gptq": {
        "qweight": Header("I32", (IN // 8, OUT)),
        "qzeros": Header("I32", (IN // 128, OUT // 8)),
        "scales": Header("F16", (IN // 128, OUT)),
        "g_idx": Header("I32", (IN,)),
    },
    "gptq, 3 bits": {
        "qweight": Header("I32", (IN * 3 // 32, OUT)),
        "qzeros": Header("I32", (4, OUT * 3 // 32)),
        "scales": Header("F16", (4, OUT)),
        "g_idx": Header("I32", (IN,)),
    },
    "awq": {
        "qweight": Header("I32", (IN, OUT // 8)),
        "qzeros": Header("I32", (IN // 128, OUT // 8)),
        "scales": Header("F16", (IN // 128, OUT)),
    },
    "awq, gemv": {
        "qweight": Header("I32", (OUT, IN // 8)),
        "qzeros": Header("I32", (OUT, 1)),
        "scales": Header("F16", (OUT, 8)),
    },
    "marlin": {"B": Header("I32", (IN // 16, OUT * 2)), "s": Header("F16", (4, OUT))},
    "packed": {
        "weight_packed": Header("I32", (OUT, IN // 8)),
        "weight_scale": Header("BF16", (OUT, 4)),
        "weight_shape": Header("I64", (2,)),
    },
    "nvfp4, ModelOpt": {
        "weight": Header("U8", (OUT, IN // 2)),
        "weight_scale": Header("F8_E4M3", (OUT, IN // 16)),
        "weight_scale_2": Header("F32", ()),
        "input_scale": Header("F32", ()),
    },
    "nvfp4, compressed-tensors": {
        "weight_packed": Header("U8", (OUT, IN // 2)),
        "weight_scale": Header("F8_E4M3", (OUT, IN // 16)),
        "weight_global_scale": Header("F32", (1,)),
    },
    "mxfp4": {"gate_up_proj_blocks": Header("U8", (8, OUT, 16, 16)), "gate_up_proj_scales": Header("U8", (8, OUT, 16))},
    "bitsandbytes, 4 bits": {
        "weight": Header("U8", (OUT * IN // 2, 1)),
        "weight.absmax": Header("U8", (2048,)),
        "weight.quant_map": Header("F32", (16,)),
        "weight.quant_state.bitsandbytes__nf4": Header("U8", (88,)),
    },
    "bitsandbytes, 8 bits": {
        "weight": Header("I8", (OUT, IN)),
        "SCB": Header("F32", (OUT,)),
        "weight_format": Header("U8", ()),
    },
    "hqq": {"W_q": Header("U8", (OUT, IN // 2)), "scale": Header("F16", (OUT, 8)), "zero": Header("F16", (OUT, 8))},
    "eetq": {"weight": Header("I8", (IN, OUT)), "weight_scales": Header("F16", (OUT,))},
    "aqlm": {
        "codes": Header("I8", (OUT, IN // 8, 2)),
        "codebooks": Header("F16", (2, 256, 1, 8)),
        "scales": Header("F16", (OUT, 1, 1, 1)),
    },
    "quip": {"Qidxs": Header("I16", (OUT, IN // 8)), "SU": Header("F16", (IN,)), "SV": Header("F16", (OUT,))},
    "exl2": {
        "q_weight": Header("I32", (IN // 8, OUT)),
        "q_scale": Header("I32", (4, OUT // 8)),
        "q_perm": Header("I16", (IN,)),
    },
    "exl3": {
        "trellis": Header("I16", (IN // 16, OUT // 16, 64)),
        "suh": Header("F16", (IN,)),
        "svh": Header("F16", (OUT,)),
    },
    "mlx": {
        "weight": Header("U32", (OUT, IN // 8)),
        "scales": Header("F16", (OUT, 8)),
        "biases": Header("F16", (OUT, 8)),
    },
    "torchao": {"weight:qdata": Header("I8", (OUT, IN)), "weight:scale": Header("F32", (OUT, 1))},
    "bitnet": {"weight": Header("U8", (OUT // 4, IN)), "weight_scale": Header("BF16", (1,))},
}
READ = {"fp8, a matrix", "fp8, an output", "fp8, a block", "int8", "awq"}
"""Those that need no announcement to be read exactly."""


def recognised(headers: Headers, config: Any = None, **side_files: Any) -> StoredWeights | None:
    """As a card does; `config` is the quantization_config of config.json."""
    document = {} if config is None else {"quantization_config": config}
    files = {f"{name}.json": each for name, each in side_files.items()}
    return announced_quantization.recognise(headers, announced_quantization.announcements(document, files))


def module(layout: str, place: str = LINEAR) -> Headers:
    """The tensors of one linear in a layout."""
    return {f"{place}.{local}": header for local, header in LAYOUTS[layout].items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_seen_and_read_only_where_it_is_known(layout: str) -> None:
    recognition = recognised(PLAIN | module(layout))
    assert recognition is not None and recognition.announced is None and "announced nowhere" in recognition.sentence
    assert recognition.readable == (layout in READ), recognition.sentence


PLACES = ["", "transformer.h.3.attn.c_attn", LINEAR, "lm_head", "model.layers.1.mlp.experts.7.w1"]
METHODS = [None, *announced_quantization.MEANS, "hqq", "aqlm", "eetq", "torchao", "quark", "auto-round", "bitnet"]


@examples(400)
@given(data=st.data())
def test_headers_with_any_quantization_are_never_taken_for_plain(data: Any) -> None:
    """Some modules in one layout or several, any float dtypes beside them, announced as anything or not at all."""
    by_name = {name: Header(data.draw(st.sampled_from(sorted(FLOATS))), header.shape) for name, header in PLAIN.items()}
    for layout in data.draw(st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=3)):
        place = data.draw(
            st.sampled_from(["", "transformer.h.3.attn.c_attn", LINEAR, "lm_head", "model.layers.1.mlp.experts.7.w1"])
        )
        by_name |= module(layout, place) if place else dict(LAYOUTS[layout])
    method = data.draw(st.sampled_from(METHODS))
    side = data.draw(
        st.sampled_from([{}, {"hf_quant_config": {}}, {"quantize_config": {"bits": 4}}, {"quant_config": {}}])
    )
    try:
        recognition = recognised(by_name, None if method is None else {"quant_method": method}, **side)
    except InvalidModel as error:
        assert str(error).endswith(".") and ("announces" in str(error) or "bits" in str(error))
        return
    assert recognition is not None


@examples(300)
@given(data=st.data())
def test_a_weight_of_any_other_dtype_or_with_any_mark_is_never_plain(data: Any) -> None:
    marks = [
        "weight_scale",
        "weight_scale_inv",
        "weight_scale_2",
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
        "weight_packed",
        "SCB",
        "weight.absmax",
        "weight_zero_point",
        "input_scale",
        "k_scale",
        "pre_quant_scale",
    ]
    odd = Header(data.draw(st.sampled_from(sorted(BITS.keys() - FLOATS))), (OUT, IN))
    marked = data.draw(st.sampled_from(marks))
    extra = data.draw(
        st.sampled_from([{"weight": odd}, {marked: Header("F32", (OUT, 1))}, {"weight": odd, marked: odd}])
    )
    assert recognised(PLAIN | {f"{LINEAR}.{local}": header for local, header in extra.items()}) is not None


@given(dtypes=st.lists(st.sampled_from(sorted(FLOATS)), min_size=len(PLAIN), max_size=len(PLAIN)))
def test_plain_headers_are_plain_in_any_float_dtype(dtypes: list[str]) -> None:
    by_name = {name: Header(dtype, header.shape) for dtype, (name, header) in zip(dtypes, PLAIN.items(), strict=True)}
    assert recognised(by_name) is None


def test_buffers_of_older_checkpoints_are_no_quantization() -> None:
    masks = {
        "transformer.h.0.attn.bias": Header("BOOL", (1, 1, 64, 64)),
        "transformer.h.0.attn.masked_bias": Header("F32", ()),
        "gpt_neox.layers.0.attention.bias": Header("U8", (1, 1, 64, 64)),
        "vision.embeddings.position_ids": Header("I64", (1, 64)),
    }
    assert recognised(PLAIN | masks) is None
    assert recognised(PLAIN | {"transformer.h.0.attn.bias": Header("U8", (64,))}) is not None, "a bias, and no mask"


GPTQ = {"quant_method": "gptq", "bits": 4, "sym": True}


@pytest.mark.parametrize(
    ("layout", "config", "words"),
    [
        ("gptq", {"quant_method": "awq"}, "announces awq, but model.layers.0.mlp.up_proj is stored as GPTQ"),
        ("awq", GPTQ, "announces gptq, but .* is stored as AWQ"),
        ("fp8, a matrix", {"quant_method": "bitsandbytes"}, "announces bitsandbytes, but .* stored as FP8"),
        ("gptq", {**GPTQ, "bits": 8}, r"says 8 bits, but .* is stored with 4"),
        (None, {"quant_method": "fp8"}, "announces fp8, but the weights are stored as plain floats"),
        (None, GPTQ, "announces gptq, but the weights are stored as plain floats"),
        ("gptq", "awq", "without a `quant_method`"),
        ("gptq", {"bits": 4}, "without a `quant_method`"),
    ],
)
def test_what_is_announced_and_stored_otherwise_is_refused_by_name(layout: str | None, config: Any, words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        recognised(PLAIN | (module(layout) if layout else {}), config)


def test_side_files_announce_as_config_does() -> None:
    with pytest.raises(
        InvalidModel, match=r"hf_quant_config.json announces modelopt, but the weights are stored as plain"
    ):
        recognised(PLAIN, hf_quant_config={"quantization": {"quant_algo": "FP8"}})
    recognition = recognised(PLAIN | module("gptq"), quantize_config={"bits": 4, "sym": True})
    assert (
        recognition is not None
        and recognition.readable
        and (recognition.method, recognition.announced, recognition.bits) == ("gptq", "quantize_config.json", 4)
    )
    nested = {"text_config": {"hidden_size": 8, "quantization_config": GPTQ}}
    assert [each.method for each in announced_quantization.announcements(nested, {})] == ["gptq"]


PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"g": {"weights": {"num_bits": 8}}},
}


@pytest.mark.parametrize(
    ("layout", "config", "why"),
    [
        ("gptq", {**GPTQ, "sym": None}, "symmetric"),
        ("gptq", {**GPTQ, "checkpoint_format": "marlin"}, "its format marlin"),
        ("gptq", {**GPTQ, "dynamic": {"+:x": {"bits": 8}}}, "differ between modules"),
        ("gptq", {**GPTQ, "sym": False, "meta": {"quantizer": ["gptqmodel:5.0.1"]}}, "two ways under one name"),
        ("awq", {"quant_method": "awq", "version": "gemv"}, "version gemv"),
        ("awq", {"quant_method": "awq", "zero_point": False}, "no zero points"),
        ("packed", None, "nothing announces how its numbers are packed"),
        ("packed", {**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "stored sparse"),
        ("packed", {**PACKED, "transform_config": {"config_groups": {"R1": {}}}}, "rotated"),
        ("packed", {**PACKED, "format": "marlin-24"}, "format marlin-24"),
        ("fp8, a matrix", {"quant_method": "quark"}, "no reader here for quark"),
    ],
)
def test_what_changes_the_numbers_and_has_no_reader_is_refused(layout: str, config: Any, why: str) -> None:
    recognition = recognised(PLAIN | module(layout), config)
    assert recognition is not None and recognition.refusal is not None and why in recognition.refusal
    assert recognition.sentence.endswith("Start from the 16-bit original.")


def test_announced_layouts_are_read_and_their_bits_known() -> None:
    for layout, config, bits in (
        ("gptq", GPTQ, 4),
        ("packed", PACKED, 8),
        ("fp8, a block", {"quant_method": "fp8"}, 8),
    ):
        recognition = recognised(PLAIN | module(layout), config)
        assert recognition is not None and recognition.readable and recognition.bits == bits, recognition
    cache = {f"{LINEAR}.weight": Header("BF16", (OUT, IN)), "model.layers.0.self_attn.k_scale": Header("F32", (1,))}
    for config in (None, {"quant_method": "compressed-tensors", "kv_cache_scheme": {}}):
        recognition = recognised(PLAIN | cache, config)
        assert recognition is not None and recognition.readable and recognition.bits == 16


def test_a_tensor_beside_a_weight_that_no_reader_knows_is_named() -> None:
    reserved = PLAIN | module("fp8, a matrix") | {f"{LINEAR}.weight_scale_2": Header("F32", ())}
    recognition = recognised(reserved)
    assert (
        recognition is not None
        and recognition.refusal is not None
        and "`weight_scale_2`, which nothing here reads" in recognition.refusal
    )


FIELDS = [
    "format",
    "sym",
    "bits",
    "version",
    "checkpoint_format",
    "config_groups",
    "dynamic",
    "sparsity_config",
    "weight_block_size",
    "meta",
    "kv_cache_scheme",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ANYTHING = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.text(max_size=5), SCALARS | st.lists(SCALARS), max_size=2)
)


@given(
    document=st.dictionaries(st.sampled_from(FIELDS), ANYTHING),
    method=st.sampled_from(sorted(announced_quantization.MEANS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_any_document_gives_a_layout_or_one_sentence(document: dict[str, Any], method: str, layout: str) -> None:
    try:
        recognised(PLAIN | module(layout), {**document, "quant_method": method})
    except InvalidModel as error:
        assert "\n" not in str(error)


def test_families_that_turn_their_weights_are_those_of_the_engine() -> None:
    from backend.layered.families import FAMILIES

    assert {name for name, rows in FAMILIES.items() if any(row.transposed for row in rows)} == stored_weights.TRANSPOSED
