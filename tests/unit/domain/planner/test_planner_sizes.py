"""Weights, cache and memory: the bundled rows explain themselves, and the tutorial's and the announcement's figures
come out."""

from __future__ import annotations

from typing import Any

import pytest

from backend.catalog.bundled import instances, models, published
from backend.domain.evaluation.document import Variant
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.model.shapes import sizes
from backend.domain.needs import serving_memory as memory
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.serving import vllm_options
from tests.helpers.model_sizes import model

ROWS = [*published.published().values(), *published.reference().values()]
AWQ = recipe.read({"steps": [{"quantize": {"method": "awq"}}]})


def device(name: str) -> Any:
    match = instances.load().find(name)
    assert match is not None
    return match.device


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_shapes_explain_every_bundled_total(row: PublishedModel) -> None:
    parts = sizes(row)
    assert parts.embedding + parts.head + parts.linears + parts.other == row.parameters
    assert 0 < parts.other < 0.011 * row.parameters, "norms, biases and positions are what is left"


@pytest.mark.parametrize("row", [row for row in ROWS if row.experts], ids=lambda row: row.id)
def test_active_parameters_of_expert_models_are_those_of_the_data(row: PublishedModel) -> None:
    parts = sizes(row)
    stated = {"mistralai/Mixtral-8x22B-Instruct-v0.1": 39_150_000_000}.get(row.hf_repo, 12_879_925_248)
    assert parts.active_linears + parts.embedding + parts.head + parts.other == pytest.approx(stated, rel=0.01)


@pytest.mark.parametrize("row", [row for row in ROWS if row.draft], ids=lambda row: row.id)
def test_the_facts_of_every_named_draft_are_bundled(row: PublishedModel) -> None:
    assert row.draft is not None
    assert model(row.draft).parameters < row.parameters


@pytest.mark.parametrize(
    ("name", "chosen", "gigabytes"),
    [
        ("meta-textgeneration-llama-2-7b", Recipe(), 13.48),
        ("meta-textgeneration-llama-3-70b", Recipe(), 141.1),
        ("meta-textgeneration-llama-3-70b", AWQ, 39.8),
        ("meta-llama/Llama-3.1-405B", Recipe(), 810.0),
    ],
)
def test_weights_are_those_of_the_tutorial_and_the_announcement(name: str, chosen: Recipe, gigabytes: float) -> None:
    assert memory.weights(model(name), chosen).total / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_int4_by_the_weights_alone_is_the_announcements_figure() -> None:
    assert model("meta-textgeneration-llama-3-70b").parameters / 2 / 1e9 == pytest.approx(35, rel=0.02)
    real = memory.weights(model("meta-textgeneration-llama-3-70b"), AWQ)
    assert real.scales > 0 and real.embedding == real.head == 128256 * 8192 * 2, "embedding and head stay 16-bit"


@pytest.mark.parametrize(
    ("name", "kib"),
    [("meta-textgeneration-llama-2-7b", 512), ("meta-llama/Llama-3.1-70B", 320), ("meta-llama/Llama-3.1-405B", 504)],
)
def test_the_cache_of_a_token_is_the_tutorials(name: str, kib: float) -> None:
    assert model(name).kv_bytes_per_token == kib * 1024 == memory.kv_bytes(model(name), Recipe().serving)


def test_an_rtx_4090_leaves_about_10_gb_and_20_thousand_tokens() -> None:
    device_memory = memory.device_memory(
        model("meta-textgeneration-llama-2-7b"), Recipe(), device("accelerator:rtx4090"), 1
    )
    assert device_memory.cache[1] / 1e9 == pytest.approx(10, rel=0.02)
    assert device_memory.tokens[1] == pytest.approx(10e9 / (512 * 1024), rel=0.02), (
        "10 GB at 0.5 MiB; the tutorial's 20k is at 0.5 MB"
    )


def test_saved_checkpoints_have_the_size_that_was_predicted() -> None:
    """13,303,808: the tensors of the starter's w8a8 artifact, summed from its header."""
    card = models.card("starter")
    assert card is not None
    w8a8 = recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]})
    assert memory.weights(card, w8a8).total == 13_303_808
    assert memory.weights(card, Recipe()).total == pytest.approx(card.weights_bytes, rel=0.001)


@pytest.mark.parametrize("serving", [{}, {"max_model_len": 256}, {"max_num_seqs": 4}, {"kv_cache_dtype": "fp8"}])
def test_on_a_processor_the_cache_is_what_our_server_reserves(serving: dict[str, Any]) -> None:
    card = models.card("starter")
    assert card is not None
    chosen = recipe.read({"serving": serving})
    variant = Variant(name="v", source="v", kind="model", model_path=card.path, serving=chosen.serving)
    room = memory.device_memory(card, chosen, memory.Device("cpu", "cpu", 1, 16 << 30), 1)
    assert room.cache[1] == vllm_options.kv_cache_bytes(variant)


@pytest.mark.parametrize(
    ("name", "target", "chosen", "degree"),
    [
        ("meta-textgeneration-llama-3-70b", "ml.g5.12xlarge", Recipe(), None),
        ("meta-textgeneration-llama-3-70b", "ml.g5.12xlarge", AWQ, 2),
        ("meta-textgeneration-llama-3-70b", "ml.p4d.24xlarge", Recipe(), 4),
        ("meta-textgeneration-llama-3-8b", "ml.g5.12xlarge", Recipe(), 1),
        ("huggingface-llm-falcon-7b-bf16", "ml.g5.12xlarge", Recipe(), 1),
        ("huggingface-llm-falcon-7b-bf16", "ml.g4dn.12xlarge", Recipe(), None),
    ],
)
def test_the_lowest_degree_that_fits_divides_the_heads(
    name: str, target: str, chosen: Recipe, degree: int | None
) -> None:
    facts: ModelFacts = model(name)
    smallest_fit = memory.find_smallest_fit(facts, chosen, device(target))
    assert (smallest_fit.tensor_parallel if smallest_fit else None) == degree
    assert all(facts.heads % n == 0 for n in memory.degrees(facts, chosen, device(target)))


def test_a_group_is_never_cut_between_devices() -> None:
    """11008 inputs in groups of 128 are 86 groups: two devices hold 43 each, four would cut them."""
    llama = model("meta-textgeneration-llama-2-7b")
    assert memory.degrees(llama, AWQ, device("ml.g5.48xlarge")) == [1, 2]
    assert memory.degrees(llama, Recipe(), device("ml.g5.48xlarge")) == [1, 2, 4, 8]


def test_kv_heads_are_copied_where_there_are_fewer_than_devices() -> None:
    llama, gemma = model("meta-textgeneration-llama-3-70b"), model("huggingface-llm-gemma-2b")
    serving = Recipe().serving
    assert memory.kv_bytes(llama, serving, 8) == memory.kv_bytes(llama, serving) // 8
    assert memory.kv_bytes(gemma, serving, 8) == memory.kv_bytes(gemma, serving), "one KV head (MQA)"
