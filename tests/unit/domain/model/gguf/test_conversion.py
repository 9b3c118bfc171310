"""Every key and every tensor of a GGUF file is carried, changes nothing, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf import conversion, keys
from backend.domain.model.gguf.conversion import Conversion, Shape
from tests.cases import ggufs
from tests.properties import examples

ONLY_LLAMA_CPP = (
    "attention.value_scale",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.recurrent_layers",
    "attention.compress_rope_freq_base",
    "attention.compress_ratios",
    "hyper_connection.count",
    "hash_layer_count",
    "hyper_connection.sinkhorn_iterations",
    "hyper_connection.epsilon",
    "deepstack_mapping",
    "hidden_activation",
    "target_layers",
    "target_hidden_size",
    "norm_before_residual",
    "rope.scale_linear",
)
"""Keys of `LLM_KV_NAMES` (src/llama-arch.cpp of llama.cpp, commit 00395eb2) that the package gguf 0.19.0 does not
list."""
ALLOWED = {f"llama.{name}" for name in (*keys.CARRIED, *keys.EQUAL, *keys.NEUTRAL, *keys.HARMLESS)}
ALLOWED |= {"llama.attention.sliding_window", *keys.TOKENIZER_CARRIED, *keys.TOKENIZER_HARMLESS, *keys.STRUCTURAL}
VALUES = st.one_of(st.integers(0, 2**31), st.floats(0, 1e6), st.booleans(), st.text(max_size=20))


def listed() -> list[str]:
    """Every key that llama.cpp names, for the architecture llama."""
    import gguf

    def constants(group: type) -> Iterator[str]:
        for name, value in vars(group).items():
            if isinstance(value, str) and not name.startswith("_"):
                yield value.format(arch="llama", id=0, name="tools", dense="dense_2")
            elif isinstance(value, type) and name != "__class__":
                yield from constants(value)

    return sorted({*constants(gguf.constants.Keys), *(f"llama.{name}" for name in ONLY_LLAMA_CPP)})


def parts(**changes: Any) -> tuple[dict[str, Any], dict[str, int], dict[str, Shape]]:
    """Keys with one value, lengths of the others, and shapes of the tensors, of a sound file."""
    stated = ggufs.keys(**changes)
    values = {key: value for key, value in stated.items() if not isinstance(value, list)}
    lengths = {key: len(value) for key, value in stated.items() if isinstance(value, list)}
    experts = changes.get("expert_count", 0)
    return values, lengths, {name: tensor.shape for name, tensor in ggufs.tensors(experts=experts).items()}


VALUES_OF, LENGTHS, SHAPES = parts()


def planned(values: dict[str, Any], shapes: dict[str, Shape] = SHAPES, lengths: dict[str, int] = LENGTHS) -> Conversion:
    return conversion.plan("x.gguf", "llama", values, lengths, shapes, ())


def test_a_sound_file_is_converted_whole() -> None:
    verdict = planned(VALUES_OF)
    assert verdict.architecture == "LlamaForCausalLM"
    assert {tensor.name for tensor in verdict.tensors} == set(SHAPES)
    names = [name for tensor in verdict.tensors for name in tensor.becomes]
    assert len(names) == len(set(names)) == len(SHAPES)


@pytest.mark.parametrize("key", [key for key in listed() if key not in ALLOWED])
def test_a_listed_key_that_no_table_has_is_refused_by_name(key: str) -> None:
    if key.startswith(keys.DESCRIPTIVE) or keys.NAMED_TEMPLATE.fullmatch(key):
        planned(VALUES_OF | {key: "words"})
        return
    for value in (0, 1, 2.5, True, "words"):
        if value in keys.TOKENIZER_NEUTRAL.get(key, ()):
            continue
        with pytest.raises(InvalidModel) as refused:
            planned(VALUES_OF | {key: value})
        assert key in str(refused.value) and "import the original model" in str(refused.value)
    with pytest.raises(InvalidModel, match="as a list"):
        planned(VALUES_OF, lengths=LENGTHS | {key: 3})


@examples(300, 60)
@given(st.from_regex(r"[a-z_]{1,12}(\.[a-z_]{1,12}){0,2}", fullmatch=True), VALUES)
def test_an_unknown_key_of_the_architecture_is_refused_by_name(name: str, value: Any) -> None:
    key = f"llama.{name}"
    if key in ALLOWED:
        return
    with pytest.raises(InvalidModel) as refused:
        planned(VALUES_OF | {key: value})
    assert f"`{key}`" in str(refused.value)


@examples(300, 60)
@given(
    st.sampled_from(sorted({*keys.CARRIED, *keys.EQUAL, *keys.NEUTRAL, "attention.sliding_window"})),
    VALUES,
    st.sampled_from(["linear", "yarn"]),
)
def test_a_changed_value_changes_the_config_or_is_refused(name: str, value: Any, kind: str) -> None:
    """No value of a key that computes is taken without a trace, but those that mean what is there already."""
    key, base = f"llama.{name}", VALUES_OF | {"llama.rope.scaling.type": kind}
    plain = planned(base)
    try:
        changed = planned(base | {key: value})
    except InvalidModel:
        return
    intended = {
        "attention.sliding_window": not value or (type(value) is int and value >= ggufs.CONTEXT),
        "rope.scaling.factor": value in {0, 1},
        "rope.scale_linear": value in {0, 1},
        "rope.scaling.type": value in {"linear", "none"},
        "expert_count": not value,
        "expert_used_count": not value,
    }
    same = value in keys.NEUTRAL.get(name, ()) or intended.get(name, False) or value == base.get(key)
    same |= name in keys.EQUAL and value == plain.config[keys.EQUAL[name]]
    same |= name == "attention.key_length" and value == plain.config["head_dim"]
    length, fast, slow = (
        f"rope.scaling.{each}" for each in ("original_context_length", "yarn_beta_fast", "yarn_beta_slow")
    )
    defaults = {length: {0, ggufs.CONTEXT}, fast: {0, 32}, slow: {0, 1}}
    same |= name in defaults and (kind == "linear" or int(value) in defaults[name])
    assert changed.config != plain.config or same


def test_keys_of_yarn_are_carried_with_it() -> None:
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    assert planned(VALUES_OF | yarn).config["rope_parameters"]["original_max_position_embeddings"] == ggufs.CONTEXT
    more = {"original_context_length": 1024, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    stated = planned(VALUES_OF | yarn | {f"llama.rope.scaling.{name}": value for name, value in more.items()})
    assert stated.config["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("llama.rope.scaling.type", "longrope", "longrope"),
        ("llama.rope.dimension_count", 8, "8"),
        ("llama.attention.value_length", 32, "32"),
        ("llama.attention.sliding_window", 1024, "1024"),
        ("llama.attention.causal", False, "False"),
        ("llama.attention.scale", 0.25, "0.25"),
        ("llama.logit_scale", 0.5, "0.5"),
        ("llama.embedding_scale", 12.0, "12"),
        ("llama.residual_scale", 0.22, "0.22"),
        ("llama.final_logit_softcapping", 30.0, "30"),
        ("llama.rope.scaling.attn_factor", 1.19, "1.19"),
        ("tokenizer.ggml.add_eos_token", True, "True"),
        ("tokenizer.ggml.remove_extra_whitespaces", True, "True"),
        ("some.vendor.key", 1, "1"),
    ],
)
def test_what_changes_the_computation_is_refused_with_its_value(key: str, value: Any, shown: str) -> None:
    with pytest.raises(InvalidModel) as refused:
        planned(VALUES_OF | {key: value})
    assert str(refused.value) == (
        f"x.gguf says `{key}` = {shown}, which this import does not carry: import the original model."
    )


@examples(200, 40)
@given(
    st.one_of(
        st.sampled_from(
            [
                "blk.0.attn_q.bias",
                "blk.1.attn_output.bias",
                "blk.0.attn_q.scale",
                "blk.0.ffn_down.input_scale",
                "rope_factors_long.weight",
                "blk.2.attn_q.weight",
                "blk.0.attn_q.weight.lora_a",
                "v.patch_embd.weight",
                "blk.0.attn_q_norm.weight",
                "blk.0.ffn_gate_inp.weight",
                "position_embd.weight",
                "cls.weight",
            ]
        ),
        st.from_regex(r"[a-z_0-9.]{1,30}\.(weight|bias|scale)", fullmatch=True),
    ),
    st.lists(st.integers(1, 512), min_size=1, max_size=3),
)
def test_a_tensor_that_is_left_over_is_refused_by_name(name: str, shape: list[int]) -> None:
    if name in SHAPES:
        return
    with pytest.raises(InvalidModel) as refused:
        planned(VALUES_OF, SHAPES | {name: tuple(shape)})
    text = str(refused.value)
    # of a bias or a router, the others are missing then
    assert name in text or text.startswith("x.gguf has no tensor ")


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_tensor_that_is_missing_or_misshapen_is_refused_by_name(name: str) -> None:
    without = {each: shape for each, shape in SHAPES.items() if each != name}
    if name != "output.weight":  # without it the head is the embedding
        with pytest.raises(InvalidModel, match=name):
            planned(VALUES_OF, without)
    with pytest.raises(InvalidModel, match=name):
        planned(VALUES_OF, without | {name: (3, 3)})


def test_experts_are_mixtrals_and_counted_within_bounds() -> None:
    values, lengths, shapes = parts(expert_count=4, expert_used_count=2)
    verdict = planned(values, shapes, lengths)
    assert (verdict.architecture, verdict.config["num_local_experts"]) == ("MixtralForCausalLM", 4)
    for change in ({"llama.expert_used_count": 5}, {"llama.expert_count": 2**20}, {"llama.expert_gating_func": 2}):
        with pytest.raises(InvalidModel, match="expert_"):
            planned(values | change, shapes, lengths)
    with pytest.raises(InvalidModel, match="expert_count"):
        renamed = {key.replace("llama.", "qwen2."): value for key, value in values.items()}
        conversion.plan("x.gguf", "qwen2", renamed, lengths, shapes, ())


def test_the_factors_of_llama_3_are_recognized_and_no_others() -> None:
    values = VALUES_OF | {"llama.rope.freq_base": 500000.0}
    shapes = SHAPES | {"rope_freqs.weight": (ggufs.SIZE // 2,)}
    for factor, length in ((8.0, 8192), (32.0, 8192), (16.0, 4096)):
        factors = ggufs.llama3_frequencies(factor, length, 500000.0)["rope_freqs.weight"].tolist()
        rope_parameters = conversion.plan("x.gguf", "llama", values, LENGTHS, shapes, factors).config["rope_parameters"]
        assert (
            rope_parameters["rope_type"],
            rope_parameters["factor"],
            rope_parameters["original_max_position_embeddings"],
        ) == (
            "llama3",
            factor,
            length,
        )
        with pytest.raises(InvalidModel, match=r"rope_freqs\.weight"):
            conversion.plan("x.gguf", "llama", values, LENGTHS, shapes, [*factors[:-1], factors[-1] * 1.1])
        with pytest.raises(InvalidModel, match="twice"):
            scaled = values | {"llama.rope.scaling.factor": 2.0}
            conversion.plan("x.gguf", "llama", scaled, LENGTHS, shapes, factors)
