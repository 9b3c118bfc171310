"""The cards of many families against tiny random models that the library makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.card import read_card
from backend.domain.errors import InvalidModel
from backend.domain.model import shapes
from backend.domain.needs import serving_memory
from backend.domain.recipe.recipe import Recipe, Serving
from backend.service.models import models as service_models
from backend.settings import ASSETS
from tests.helpers.config_fields import COMMON, LATENT, PLAIN
from tests.homes import open_home
from tests.tiny import edit_json

ALONE = {name: value for name, value in PLAIN.items() if name != "num_key_value_heads"}
OLD = {**COMMON, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {**COMMON, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt2": ("gpt2", OLD),
    "gptj": ("gptj", {**OLD, "rotary_dim": 4}),
    "gpt_bigcode": ("gpt_bigcode", OLD),
    "gpt_neox": ("gpt_neox", ALONE),
    "mpt": ("mpt", {**COMMON, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "opt": ("opt", {**ALONE, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon, multi-query": ("falcon", {**ALONE, "multi_query": True}),
    "falcon, new decoder": ("falcon", {**ALONE, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "phi": ("phi", PLAIN),
    "phi3": ("phi3", PLAIN),
    "cohere": ("cohere", PLAIN),
    "cohere2": ("cohere2", {**PLAIN, "num_hidden_layers": 4, "sliding_window": 8}),
    "gemma": ("gemma", {**PLAIN, "head_dim": 16}),
    "gemma2": ("gemma2", {**PLAIN, "head_dim": 16, "sliding_window": 8}),
    "gemma3": ("gemma3_text", {**PLAIN, "head_dim": 16, "num_hidden_layers": 6, "sliding_window": 8}),
    "mistral, sliding": ("mistral", {**PLAIN, "sliding_window": 8}),
    "mixtral": ("mixtral", {**PLAIN, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", PLAIN),
    "qwen2, windows": ("qwen2", {**PLAIN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**PLAIN, "head_dim": 16}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **PLAIN,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {**PLAIN, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **PLAIN,
            **LATENT,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
    ),
}
EXPANDED = {"deepseek_v3", "falcon, new decoder"}
"""The library keeps keys and values of every head for these; vLLM keeps the latent vector, and the KV heads alone."""


def make(folder: Path, kind: str, options: dict[str, Any]) -> Any:
    """A random model in `folder` with the starter's tokenizer, whose entries the card does not compare."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((ASSETS / "starter" / "draft" / "tokenizer.json").read_bytes())
    return model


def cached(model: Any, tokens: int) -> int:
    """Elements that the library's own cache holds after `tokens` tokens."""
    import torch

    with torch.no_grad():
        remaining = model(torch.ones((1, tokens), dtype=torch.long), use_cache=True).past_key_values
    return sum(layer.keys.numel() + layer.values.numel() for layer in remaining.layers)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_card_is_the_models_own(name: str, tmp_path: Path) -> None:
    kind, options = FAMILIES[name]
    model = make(tmp_path, kind, options)
    card = read_card(tmp_path)
    assert card.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert card.stored is None and card.quantization is None, "plain weights are never taken for quantized ones"
    assert (card.model_type, card.layers, card.hidden_size, card.heads, card.vocabulary) == (
        kind,
        model.config.num_hidden_layers,
        32,
        4,
        320,
    )
    assert card.tied_embeddings == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    if name not in EXPANDED:
        assert card.kv_bytes_per_token == 2 * cached(model, 1), "as the library's own cache"
    parts = shapes.sizes(card)
    assert parts.embedding + parts.head + parts.linears + parts.other == card.parameters
    assert 0 < parts.active_linears <= parts.linears


@pytest.mark.parametrize("name", ["mistral, sliding", "gemma2", "gemma3", "cohere2", "qwen2, windows", "gpt_oss"])
def test_a_sliding_window_bounds_the_cache_as_the_library_does(name: str, tmp_path: Path) -> None:
    """The library keeps one token less than the window before the next one comes; ours counts the window."""
    model = make(tmp_path, *FAMILIES[name])
    card = read_card(tmp_path)
    assert card.sliding_window == 8 and 0 < card.sliding_layers <= card.layers
    short_by = card.sliding_layers * card.kv_width
    assert card.kv_bytes_of(40) == 2 * (cached(model, 40) + short_by)
    assert card.kv_bytes_of(4) == 4 * card.kv_bytes_per_token


def test_experts_are_counted_from_the_headers_and_shared_ones_are_not_among_them(tmp_path: Path) -> None:
    model = make(tmp_path, *FAMILIES["deepseek_v3"])
    card = read_card(tmp_path)
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert (card.experts, card.experts_per_token, card.intermediate_size) == (4, 2, 24)
    assert card.expert_parameters == routed == 4 * 3 * 32 * 24
    assert shapes.sizes(card).linears - shapes.sizes(card).active_linears == routed // 2


def test_latent_attention_keeps_one_vector_a_token_on_every_device(tmp_path: Path) -> None:
    make(tmp_path, *FAMILIES["deepseek_v3"])
    card = read_card(tmp_path)
    assert card.kv_latent == 16 + 8 and card.kv_bytes_per_token == 2 * 24 * 2
    assert (
        serving_memory.kv_bytes(card, Serving(), 1)
        == serving_memory.kv_bytes(card, Serving(), 4)
        == card.kv_bytes_per_token
    )


@pytest.fixture(scope="module")
def multimodal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder = tmp_path_factory.mktemp("llava")
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "projection_dim": 16,
    }
    text = {**PLAIN, "model_type": "llama"}
    config = AutoConfig.for_model("llava", text_config=text, vision_config=vision, image_token_index=1)
    model = AutoModelForImageTextToText.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((ASSETS / "starter" / "draft" / "tokenizer.json").read_bytes())
    return folder, model


def test_a_multimodal_model_is_described_by_its_text_part_and_says_so(multimodal: tuple[Path, Any]) -> None:
    folder, model = multimodal
    card = read_card(folder)
    assert (card.architecture, card.model_type) == ("LlavaForConditionalGeneration", "llava")
    assert (card.layers, card.hidden_size, card.kv_heads, card.max_positions) == (2, 32, 2, 128)
    assert "text part, of type llama" in card.notes[0]
    outside = sum(
        p.numel() for name, p in model.named_parameters() if "language_model" not in name and "lm_head" not in name
    )
    assert card.parameters == sum(p.numel() for p in model.parameters()) and card.outside_parameters == outside > 0
    parts = shapes.sizes(card)
    assert parts.other >= outside and serving_memory.weights(card, Recipe()).total == 2 * card.parameters


def test_a_text_part_that_does_not_fit_its_weights_is_refused(multimodal: tuple[Path, Any], tmp_path: Path) -> None:
    for path in multimodal[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    edit_json(tmp_path / "config.json", text_config={**config["text_config"], "num_hidden_layers": 3})
    with pytest.raises(InvalidModel, match="3 layers"):
        read_card(tmp_path)


def buffered(folder: Path, extra: dict[str, Any]) -> None:
    from safetensors.torch import load_file, save_file

    save_file({**load_file(folder / "model.safetensors"), **extra}, folder / "model.safetensors")


def test_the_masks_in_older_checkpoints_are_no_parameters(tmp_path: Path) -> None:
    import torch

    make(tmp_path, *FAMILIES["gpt2"])
    before = read_card(tmp_path).parameters
    buffered(
        tmp_path,
        {"transformer.h.0.attn.bias": torch.ones(1, 1, 128, 128), "transformer.h.0.attn.masked_bias": torch.ones(1)},
    )
    assert read_card(tmp_path).parameters == before


def test_layers_that_predict_further_tokens_are_not_too_many(tmp_path: Path) -> None:
    import torch

    make(tmp_path, *FAMILIES["deepseek_v3"])
    buffered(tmp_path, {"model.layers.2.eh_proj.weight": torch.ones(32, 64, dtype=torch.bfloat16)})
    assert read_card(tmp_path).layers == 2
    edit_json(tmp_path / "config.json", num_nextn_predict_layers=0)
    with pytest.raises(InvalidModel, match="2 layers, but the weights hold 3"):
        read_card(tmp_path)


def test_a_folder_of_an_unknown_architecture_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    make(tmp_path / "model", *FAMILIES["qwen2"])
    edit_json(tmp_path / "model" / "config.json", architectures=["OwnCodeForCausalLM"])
    home = open_home(tmp_path / "home")
    with pytest.raises(InvalidModel, match="'OwnCodeForCausalLM'"):
        service_models.remember(home, str(tmp_path / "model"))
    assert service_models.list_remembered(home) == []
