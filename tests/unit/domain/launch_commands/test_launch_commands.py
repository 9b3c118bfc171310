"""Commands for engines that are not started here: what each reads, its options, and what it is refused for."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.launch_commands.commands import LaunchCommand, make_command
from backend.domain.launch_commands.engines import ENGINES, LaunchName
from backend.domain.recipe.methods import QUANTIZE
from backend.domain.recipe.recipe import ORIGINAL, Recipe, Serving
from backend.domain.recipe.speculation import SPECULATE

SERVING = Serving(dtype="bfloat16", max_model_len=4096, max_num_seqs=8, tensor_parallel=2, prefix_caching=False)
DRAFT = Speculation(method="draft", tokens=4, draft_path="/a/draft")


def variant(**changes: Any) -> Variant:
    fields: dict[str, Any] = {"name": "w8a8", "source": "a-1", "kind": "artifact", "model_path": "/a b/model"}
    return Variant(**{**fields, **changes})


def command_for(engine: LaunchName, recipe: Recipe = ORIGINAL, **changes: Any) -> LaunchCommand:
    return make_command(engine, variant(**changes), recipe)


def recipe(**step: Any) -> Recipe:
    return Recipe.model_validate({"steps": [{"quantize": step}]})


def test_rows_have_versions_sources_and_known_words() -> None:
    for row in ENGINES.values():
        assert row.sources and row.version in row.image
        assert set(row.speculation) <= set(SPECULATE)


def test_sglang_has_every_setting_and_a_draft() -> None:
    command = command_for("sglang", recipe(method="w8a8"), serving=SERVING, speculation=DRAFT)
    words = shlex.split(command.command)
    pairs = dict(itertools.pairwise(words))
    assert words[:2] == ["docker", "run"] and "/a b/model:/model:ro" in words and "/a/draft:/draft:ro" in words
    assert pairs["--model-path"] == "/model" and pairs["--served-model-name"] == "w8a8"
    assert (pairs["--dtype"], pairs["--tp-size"], pairs["--context-length"]) == ("bfloat16", "2", "4096")
    assert pairs["--speculative-algorithm"] == "STANDALONE" and pairs["--speculative-num-draft-tokens"] == "5"
    assert "--disable-radix-cache" in words and command.url == "http://127.0.0.1:30000/v1"
    assert command.notes[0].startswith("Not run here")


def test_tgi_is_told_by_flags_and_environment() -> None:
    words = shlex.split(command_for("tgi", serving=SERVING, speculation=Speculation(method="ngram", tokens=3)).command)
    assert "PREFIX_CACHING=0" in words and words[words.index("--speculate") + 1] == "3"
    assert "127.0.0.1:8080:80" in words and "--served-model-name" not in words


def test_tensorrt_llm_gets_a_file_of_settings_for_what_has_no_flag() -> None:
    command = command_for("tensorrt-llm", recipe(method="fp8"), serving=SERVING, speculation=DRAFT).command
    assert '"enable_block_reuse": false' in command and '"decoding_type": "DraftTarget"' in command
    assert "trtllm-serve /model --host 0.0.0.0" in command and "--extra_llm_api_options /settings.yaml" in command
    assert "cat >" not in command_for("tensorrt-llm").command


@pytest.mark.parametrize(
    ("engine", "step", "changes", "words"),
    [
        ("tensorrt-llm", {"method": "w8a8"}, {}, "does not read w8a8 weights in compressed-tensors; use SGLang or TGI"),
        ("tensorrt-llm", {"method": "awq", "format": "autoawq"}, {}, "does not read AutoAWQ's layout"),
        ("tgi", None, {"speculation": DRAFT}, "it has no `speculate: {method: draft}`; use SGLang or TensorRT-LLM"),
        ("tgi", {"method": "nvfp4"}, {}, "does not read nvfp4 weights in compressed-tensors; use SGLang"),
        ("sglang", {"method": "mxfp8"}, {}, "does not read mxfp8 weights in compressed-tensors"),
        ("tgi", None, {"gguf": "/m/q.gguf"}, "reads no GGUF files; use SGLang"),
        ("sglang", None, {"serving": Serving(kv_cache_dtype="q8_0")}, "no key-value cache of type q8_0; serve it with"),
    ],
)
def test_what_an_engine_does_not_read_is_refused_with_what_does(
    engine: LaunchName, step: dict[str, Any] | None, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ImpossibleStack) as refused:
        command_for(engine, recipe(**step) if step else ORIGINAL, **changes)
    assert words in str(refused.value)


def test_every_method_of_the_table_is_read_or_refused() -> None:
    for method in QUANTIZE:
        for engine in ENGINES:
            try:
                assert command_for(engine, recipe(method=method)).command
            except ImpossibleStack as refused:
                assert str(refused).startswith(ENGINES[engine].title)
