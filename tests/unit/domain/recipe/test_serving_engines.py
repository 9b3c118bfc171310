"""The table of serving engines, what it says of unsupported combinations, and the rule that reads it."""

from __future__ import annotations

import pytest

from backend.domain.errors import InvalidRecipe
from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe, Serving, Speculate
from backend.domain.recipe.serving_engines import (
    ENGINES,
    SERVED,
    Combination,
    choose_engine,
    find_unread_gguf,
    find_unsupported,
)
from backend.domain.recipe.speculation import SPECULATE


def test_every_row_names_its_sources_and_serves_what_it_states() -> None:
    assert {row.engine for row in SERVED} == set(ENGINES)
    for row in SERVED:
        assert row.sources and all(row.sources)
        assert row.speculation <= set(SPECULATE)
        for cache in row.cache:
            for method in (None, *row.speculation):
                combination = Combination(row.engine, row.format, row.hardware, method, cache)
                assert find_unsupported(combination) is None


@pytest.mark.parametrize(
    ("combination", "words"),
    [
        (Combination("vllm", "gguf", "cpu"), ("vLLM reads safetensors here", "engine: llama.cpp")),
        (Combination("llama.cpp", "safetensors", "cpu"), ("reads GGUF", "engine: vllm", "models import FILE.gguf")),
        (Combination("llama.cpp", "gguf", "cuda"), ("does not run on cuda", "serve it on cpu")),
        (Combination("llama.cpp", "gguf", "cpu", "suffix"), ("suffix", "`draft` or `ngram`", "engine: vllm")),
        (Combination("llama.cpp", "gguf", "cpu", None, "fp8"), ("no key-value cache of type fp8", "`auto` or `q8_0`")),
        (Combination("openvino", "safetensors", "cpu"), ("OpenVINO GenAI reads GGUF", "engine: vllm")),
        (Combination("openvino", "gguf", "cpu", "draft"), ("draft", "use `ngram`")),
        (Combination("openvino", "gguf", "cpu", None, "q8_0"), ("type q8_0", "`auto` or `u8` or `u4`")),
        (Combination("vllm", "safetensors", "cpu", None, "q4_0"), ("type q4_0", "`auto` or `fp8`")),
        (Combination("llama.cpp", "gguf", "cpu", None, "auto", 2), ("as a whole", "tensor_parallel: 1")),
    ],
)
def test_an_unsupported_combination_is_one_sentence_with_what_works(
    combination: Combination, words: tuple[str, ...]
) -> None:
    unsupported = find_unsupported(combination)
    assert unsupported is not None and unsupported.source
    assert all(word in unsupported.sentence for word in words)
    assert unsupported.sentence.endswith(".") and unsupported.sentence.count(". ") == 0


@pytest.mark.parametrize(
    ("architecture", "types", "parts", "words"),
    [
        ("llama", {"F32", "Q8_0"}, 1, None),
        ("gemma2", {"F32", "Q8_0"}, 1, "this is one of gemma2"),
        ("qwen2", {"F32", "Q5_K", "Q6_K"}, 1, "tensors of type Q5_K"),
        ("qwen2", {"F32"}, 1, "needs the key qwen2.attention.layer_norm_rms_epsilon"),
        ("qwen3", {"BF16"}, 2, "in 2 parts"),
    ],
)
def test_openvino_says_which_gguf_files_it_reads(
    architecture: str, types: set[str], parts: int, words: str | None
) -> None:
    keys = {f"{name}.attention.layer_norm_rms_epsilon" for name in ("llama", "qwen3")}
    unread = find_unread_gguf(architecture, types, keys | {"general.file_type", "tokenizer.ggml.model"}, parts)
    assert unread is None if words is None else unread is not None and words in unread.sentence


def test_a_format_has_an_engine() -> None:
    assert choose_engine("gguf") == "llama.cpp" and choose_engine("safetensors") == "vllm"


def test_recipes_from_before_keep_their_hash() -> None:
    assert "engine" not in Recipe().model_dump(mode="json")["serving"]
    assert Recipe().hash == Recipe(serving=Serving(engine="vllm")).hash
    assert Recipe().hash != Recipe(serving=Serving(engine="llama.cpp")).hash


def test_a_recipe_names_engine_threads_and_cache() -> None:
    written = {"name": "q", "serving": {"engine": "llama.cpp", "threads": 2, "kv_cache_dtype": "q8_0"}}
    read = recipe.read(written)
    assert read.serving.engine == "llama.cpp" and read.serving.threads == 2
    assert recipe.read(read.model_dump(mode="json")) == read


OPENVINO_LACKS = (
    {"engine": "openvino", "batch_threads": 2},
    {"engine": "openvino", "device": "NPU"},
    {"device": "GPU"},
)


@pytest.mark.parametrize(
    "serving", [{"engine": "tgi"}, {"threads": 2}, {"engine": "llama.cpp", "threads": 0}, *OPENVINO_LACKS]
)
def test_a_wrong_engine_or_option_is_refused(serving: dict[str, object]) -> None:
    with pytest.raises(InvalidRecipe):
        recipe.read({"name": "q", "serving": serving})


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"method": "ngram", "tokens_by_batch": {1: 4, 8: 0}}, "leave `tokens_by_batch` out"),
        ({"method": "ngram", "tokens": 2}, "set `tokens: 4`, or `prompt_lookup_max: 2`"),
        ({"method": "draft", "draft": "d", "heterogeneous_vocab": True}, "a draft of the same family"),
        ({"method": "ngram", "prompt_lookup_max": 3, "tokens": 3}, None),
        ({"method": "draft", "draft": "d"}, None),
    ],
)
def test_options_of_speculation_that_llama_cpp_lacks(step: dict[str, object], words: str | None) -> None:
    read = recipe.read({"name": "s", "steps": [{"speculate": step}]}).steps[0]
    assert isinstance(read, Speculate)
    unsupported = llama_cpp_speculation.find_unsupported_option(read)
    assert (unsupported is None) if words is None else (unsupported is not None and words in unsupported.sentence)


def test_speculation_as_options_of_llama_cpps_server() -> None:
    lookup = llama_cpp_speculation.flags(Speculate(method="ngram", tokens=6), "")
    sizes = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "6"]
    assert lookup == ["--spec-type", "ngram-simple", *sizes]
    draft = llama_cpp_speculation.flags(Speculate(method="draft", draft="d"), "./d.gguf")
    assert draft == ["--spec-type", "draft-simple", "--spec-draft-model", "./d.gguf", "--spec-draft-n-max", "4"]
    assert llama_cpp_speculation.flags(None, "") == []
