"""The cards of config.json files as they are published, and of broken ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models import model_rows
from backend.catalog.cards import config as configuration
from backend.domain.errors import InvalidModel
from backend.domain.model.facts import ModelCard
from tests import architectures
from tests.helpers.config_fields import LATENT, PLAIN

QWEN2_VL = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "vocab_size": 152064,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 32, "hidden_size": 3584},
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**6) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SOUND = [
    QWEN2_VL,
    {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **PLAIN, **LATENT, "n_routed_experts": 4},
    {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 9,
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {},
        "expansion_ratio": 4,
    },
    {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text"},
    },
    {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **PLAIN, "layer_types": ["full_attention"] * 2},
]


def facts(**config: Any) -> ModelCard:
    """A card of the facts alone."""
    result, notes, _ = configuration.read(config)
    return ModelCard(
        id="m",
        origin="folder",
        path="/m",
        revision="r",
        dtype="bfloat16",
        parameters=1,
        weights_bytes=1,
        tokenizer_hash=None,
        notes=notes,
        **result,
    )


def test_bloom_as_it_is_published_states_neither_context_nor_tied_embeddings() -> None:
    card = facts(
        architectures=["BloomForCausalLM"],
        model_type="bloom",
        n_embed=14336,
        n_layer=70,
        num_attention_heads=112,
        vocab_size=250880,
    )
    assert (card.hidden_size, card.intermediate_size, card.tied_embeddings) == (14336, 57344, True)
    assert card.max_positions == 2048 and "2,048 tokens are assumed" in card.notes[0]
    assert card.kv_bytes_per_token == 2 * 70 * 14336 * 2


def test_falcon_7b_as_it_is_published_has_one_kv_head() -> None:
    card = facts(
        architectures=["FalconForCausalLM"],
        model_type="falcon",
        alibi=False,
        hidden_size=4544,
        multi_query=True,
        new_decoder_architecture=False,
        num_attention_heads=71,
        num_hidden_layers=32,
        parallel_attn=True,
        vocab_size=65024,
    )
    assert (card.kv_heads, card.head_dim, card.max_positions, card.intermediate_size) == (1, 64, 2048, 18176)


def test_gemma_3_4b_as_it_is_published_leaves_its_heads_to_the_class() -> None:
    card = facts(
        architectures=["Gemma3ForConditionalGeneration"],
        model_type="gemma3",
        mm_tokens_per_image=256,
        text_config={
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        vision_config={"hidden_size": 1152, "model_type": "siglip_vision_model", "num_hidden_layers": 27},
    )
    assert (card.heads, card.kv_heads, card.head_dim, card.vocabulary, card.tied_embeddings) == (
        8,
        4,
        256,
        262208,
        True,
    )
    assert (card.sliding_window, card.sliding_layers) == (1024, 29), "five of six look back on a window"
    assert card.kv_bytes_of(8192) == 2 * 4 * 256 * 2 * (5 * 8192 + 29 * 1024)


def test_llava_as_it_is_published_leaves_its_sizes_to_llama() -> None:
    text = {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "vocab_size": 32064}
    card = facts(
        architectures=["LlavaForConditionalGeneration"], model_type="llava", text_config=text, vision_config={}
    )
    assert (card.layers, card.hidden_size, card.heads, card.kv_heads) == (32, 4096, 32, 32)


def test_qwen2_vl_as_it_is_published_has_its_text_part_at_the_top() -> None:
    card = facts(**QWEN2_VL)
    assert (card.layers, card.kv_heads, card.head_dim, card.sliding_window) == (28, 4, 128, None)
    assert "text part, of type qwen2_vl_text" in card.notes[0]


@given(data=st.data())
def test_any_field_of_any_kind_gives_sizes_or_one_sentence(data: Any) -> None:
    config = dict(data.draw(st.sampled_from(SOUND)))
    for field in data.draw(
        st.lists(st.sampled_from(sorted({*config, "layer_types", "sliding_window_pattern", "num_experts"})), max_size=2)
    ):
        config[field] = data.draw(ANYTHING)
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = {
            **config["text_config"],
            data.draw(st.sampled_from([*PLAIN, "model_type"])): data.draw(ANYTHING),
        }
    try:
        card = facts(**config)
    except InvalidModel as error:
        assert str(error).endswith(".") and "\n" not in str(error)
        return
    assert card.kv_bytes_per_token >= 0 and card.kv_bytes_of(100) <= 100 * card.kv_bytes_per_token


def test_deepseek_v3_keeps_70_kilobytes_a_token() -> None:
    card = facts(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        hidden_size=7168,
        intermediate_size=18432,
        kv_lora_rank=512,
        max_position_embeddings=163840,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_attention_heads=128,
        num_experts_per_tok=8,
        num_hidden_layers=61,
        num_key_value_heads=128,
        num_nextn_predict_layers=1,
        q_lora_rank=1536,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        tie_word_embeddings=False,
        v_head_dim=128,
        vocab_size=129280,
    )
    assert (card.kv_latent, card.kv_bytes_per_token, card.head_dim, card.experts) == (576, 61 * 576 * 2, 192, 256)


def test_the_page_says_how_the_cache_comes_about_and_every_note() -> None:
    sizes = {**PLAIN, **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2}
    latent = facts(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", **sizes)
    assert model_rows.cache_formula(latent) == "2 layers x 24 x 2 bytes, one latent vector per token in 16 bit"
    window = facts(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=8, **PLAIN)
    assert model_rows.cache_of_context(window) == "128 tokens of one request; 2 layers store at most 8 of them"
    shown = {label: (value, how) for label, value, how in model_rows.model_figures(window)}
    assert shown["KV cache, full context"] == ("1.02 kB", model_rows.cache_of_context(window))
    bloom = facts(
        architectures=["BloomForCausalLM"], model_type="bloom", n_embed=32, n_layer=2, n_head=4, vocab_size=320
    )
    assert model_rows.fact_rows(bloom)[-1]["Fact"] == "Note" and "assumed" in model_rows.fact_rows(bloom)[-1]["Value"]


def test_layers_of_a_hybrid_that_keep_no_cache_are_not_counted() -> None:
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
    sizes = {**PLAIN, "num_hidden_layers": 8, "head_dim": 16}
    card = facts(architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", layer_types=types, **sizes)
    assert card.kv_layers == 2 and card.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "'BertModel'.*generates text"),
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            "'T5ForConditionalGeneration'.*generates text",
        ),
        ({"architectures": ["CLIPModel"], "model_type": "clip", "text_config": {}}, "'CLIPModel'.*generates text"),
        ({"architectures": ["OwnCodeForCausalLM"], "model_type": "own"}, "'OwnCodeForCausalLM'.*runs no code"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "`mamba`, which has no attention"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": "12"}, "`num_attention_heads`"),
        (
            {
                "architectures": ["LlavaForConditionalGeneration"],
                "model_type": "llava",
                "text_config": {"hidden_size": 0},
            },
            "`hidden_size`",
        ),
    ],
)
def test_what_generates_no_text_or_is_not_known_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidModel, match=words) as caught:
        configuration.read(changes)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_the_bundled_facts_of_architectures_are_those_of_the_installed_library() -> None:
    assert json.loads(architectures.PATH.read_text()) == architectures.expected()
