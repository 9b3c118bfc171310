"""What a `speculate` step may say, how it is written, and what vLLM is told."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.errors import InvalidRecipe
from backend.domain.evaluation.document import Speculation
from backend.domain.evaluation.vllm_flags import speculative_config
from backend.domain.recipe.recipe import Recipe, Speculate, read
from backend.domain.recipe.speculation import SPECULATE
from backend.service.plans import recipe_files


def speculating(**options: Any) -> Recipe:
    return read({"steps": [{"speculate": options}]})


def step(**options: Any) -> Speculate:
    (result,) = speculating(**options).steps
    assert isinstance(result, Speculate)
    return result


def config_of(**options: Any) -> dict[str, Any]:
    return speculative_config(Speculation.from_step(step(**options), "/a/draft", "/code"), "DRAFT")


@pytest.mark.parametrize(
    ("options", "hashed"),
    [
        (
            {"method": "draft", "draft": "auto", "tokens": 4},
            "084c1d155727698e5393d8332c879b0a2f58531f769da484eb49f5c6bf5385b4",
        ),
        ({"method": "ngram"}, "cc93c86b950d09f8d2dd12c38845970b518a30c74636f4f46a2f547c0800b0a1"),
        (
            {"method": "eagle3", "draft": "head", "tokens": 5},
            "ae6ccc4d56682b934d4d88f2501b9b8338d4dc1dd3d8e4d9fd616f3452a2caf9",
        ),
    ],
)
def test_recipes_from_before_the_options_keep_their_hash(options: dict[str, Any], hashed: str) -> None:
    assert speculating(**options).hash == hashed


def test_a_speculation_without_options_is_written_as_it_was() -> None:
    assert Speculation.from_step(step(method="ngram", tokens=3), None).model_dump() == {
        "method": "ngram",
        "tokens": 3,
        "draft_path": None,
    }


OPTIONS: list[dict[str, Any]] = [
    {"method": "draft", "draft": "d", "heterogeneous_vocab": True},
    {"method": "ngram", "prompt_lookup_max": 6},
    {"method": "draft", "draft": "d", "tokens_by_batch": {1: 4, 8: 1, 16: 0}},
    {"method": "dflash", "draft": "h"},
    {"method": "custom", "proposer": "mine.Proposer"},
    {"method": "medusa", "draft": "h"},
    {"method": "ngram_adaptive", "tokens": 4},
    {"method": "ngram_adaptive", "tokens": 8},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_each_option_survives_being_written_and_read(options: dict[str, Any]) -> None:
    chosen = speculating(**options)
    assert recipe_files.read_text(recipe_files.write_text(chosen)) == chosen
    again = Recipe.model_validate_json(chosen.model_dump_json())
    assert again == chosen and again.hash == chosen.hash and chosen.model_dump()["steps"][0]["speculate"] == options


def test_a_schedule_is_one_whatever_its_order_and_reads_as_a_mapping() -> None:
    one, other = ({"method": "ngram", "tokens_by_batch": written} for written in ({8: 0, 1: 4}, {"1": 4, "8": 0}))
    assert speculating(**one).hash == speculating(**other).hash
    assert "tokens_by_batch: {1: 4, 8: 0}" in recipe_files.write_text(speculating(**one)).replace("\n", " ")
    assert [step(**one).tokens_at(streams) for streams in (0, 1, 7, 8, 99)] == [4, 4, 4, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ngram", "heterogeneous_vocab": True}, "goes with `method: draft`, not with `method: ngram`"),
        ({"method": "draft", "prompt_lookup_max": 3}, "goes with `method: ngram`, not with `method: draft`"),
        ({"method": "draft", "proposer": "a.B"}, "goes with `method: custom`, not with `method: draft`"),
        ({"method": "custom", "draft": "d"}, "not with `method: custom`"),
        ({"method": "custom", "proposer": "Proposer"}, "must be a class as package.module.Class"),
        ({"method": "custom", "proposer": "os; rm.B"}, "must be a class as package.module.Class"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "`prompt_lookup_min` 5 is above"),
        ({"method": "ngram", "tokens_by_batch": {2: 4}}, "must begin at 1 sequence"),
        ({"method": "ngram", "tokens_by_batch": {}}, "must begin at 1 sequence"),
        ({"method": "ngram", "tokens_by_batch": {1: 6}}, "proposes up to 6 tokens and `tokens` is 4: set `tokens: 6`"),
        ({"method": "ngram", "tokens_by_batch": {1: 0}}, "proposes up to 0 tokens"),
        ({"method": "ngram", "tokens_by_batch": {1: 4, "01": 2}}, "twice"),
        ({"method": "ngram", "tokens_by_batch": {1: -4}}, "must be at least 0"),
        ({"method": "ngram", "tokens_by_batch": {"many": 4}}, "must be a whole number"),
        ({"method": "ngram", "tokens_by_batch": 4}, "must be a list"),
        ({"method": "medusa", "tokens_by_batch": {1: 4}}, "not with `method: medusa`"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecipe) as refused:
        speculating(**options)
    assert message in str(refused.value) and str(refused.value).count(". ") == 0


def test_vllm_is_told_each_method_in_its_own_words() -> None:
    assert config_of(method="draft", draft="d", heterogeneous_vocab=True) == {
        "method": "draft_model",
        "model": "DRAFT",
        "num_speculative_tokens": 4,
        "use_heterogeneous_vocab": True,
    }
    assert config_of(method="medusa", draft="h", tokens=2) == {
        "method": "medusa",
        "model": "DRAFT",
        "num_speculative_tokens": 2,
    }
    assert config_of(method="dflash", draft="h")["method"] == "dflash"
    assert config_of(method="custom", proposer="mine.Proposer") == {
        "method": "custom_class",
        "model": "mine.Proposer",
        "num_speculative_tokens": 4,
    }
    assert config_of(method="ngram_adaptive") == {
        "method": "custom_class",
        "model": "whetstone_ngrams.AdaptiveNgrams",
        "num_speculative_tokens": 8,
    }
    assert config_of(method="suffix", tokens=8) == {"method": "suffix", "num_speculative_tokens": 8}


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [({}, 2, 4), ({"prompt_lookup_max": 1}, 1, 1), ({"prompt_lookup_min": 6}, 6, 6), ({"prompt_lookup_min": 3}, 3, 4)],
)
def test_one_end_of_the_lookup_moves_the_other_where_they_would_cross(
    options: dict[str, Any], least: int, most: int
) -> None:
    config = config_of(method="ngram", **options)
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (least, most)


def test_a_schedule_is_ranges_without_a_gap_and_its_last_goes_on() -> None:
    ranges = config_of(method="ngram", tokens_by_batch={1: 4, 4: 2, 16: 0})["num_speculative_tokens_per_batch_size"]
    assert ranges == [[1, 3, 4], [4, 15, 2], [16, 16, 0]]


def test_every_method_says_what_it_is() -> None:
    assert all(row.title and row.engine_method for row in SPECULATE.values())
