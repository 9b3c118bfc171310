"""The options, links and sizes of llama.cpp's server, its counters, and its answers about probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.limits.served_divergence import parse_token_probabilities
from backend.domain.load import counters
from backend.domain.needs import kv_cache_tokens
from backend.domain.recipe.recipe import Serving
from backend.present import serve_command
from backend.serving import failures, llama_cpp_options
from backend.serving.gguf.server import file_links
from backend.serving.llama_cpp import LlamaCppServer
from backend.serving.servers import make_server, runs_on_processor
from backend.serving.vllm import VllmServer

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def model(tmp_path: Path) -> Variant:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    gguf = tmp_path / "gguf" / "model.gguf"
    gguf.parent.mkdir()
    gguf.touch()
    serving = Serving(engine="llama.cpp")
    return Variant(name="m, q4", source="m", kind="model", model_path=str(tmp_path), gguf=str(gguf), serving=serving)


def value_of(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def arguments_of(variant: Variant, **changes: object) -> list[str]:
    serving = variant.serving.model_copy(update=changes)
    return llama_cpp_options.server_arguments(
        variant.model_copy(update={"serving": serving}), port=1234, served_name="m"
    )


def test_every_setting_reaches_the_server(model: Variant) -> None:
    arguments = arguments_of(
        model,
        threads=3,
        batch_threads=5,
        max_num_seqs=7,
        max_model_len=256,
        kv_cache_dtype="q8_0",
        prefix_caching=False,
        max_num_batched_tokens=256,
        micro_batch_tokens=128,
        flash_attention=False,
    )
    assert [value_of(arguments, name) for name in ("--batch-size", "--ubatch-size", "--flash-attn")] == [
        "256",
        "128",
        "off",
    ]
    assert value_of(arguments, "--threads") == "3" and value_of(arguments, "--threads-batch") == "5"
    assert value_of(arguments, "--parallel") == "7" and value_of(arguments, "--ctx-size") == str(7 * 256)
    assert value_of(arguments, "--cache-type-k") == value_of(arguments, "--cache-type-v") == "q8_0"
    assert "--no-cache-prompt" in arguments and value_of(arguments, "--cache-ram") == "0"
    assert value_of(arguments, "--port") == "1234" and value_of(arguments, "--host") == "127.0.0.1"


def test_nothing_stated_takes_one_thread_a_core_and_the_models_context(model: Variant) -> None:
    arguments = arguments_of(model)
    assert value_of(arguments, "--threads") == str(llama_cpp_options.cores())
    assert value_of(arguments, "--ctx-size") == str(kv_cache_tokens.POOL_SLOTS * 1024)
    assert "--cache-type-k" not in arguments and "--no-cache-prompt" not in arguments


def test_a_known_load_decides_slots_and_cache(model: Variant) -> None:
    assert llama_cpp_options.slots(model, 16) == 16
    assert llama_cpp_options.pool_tokens(model, 100, 1) == max(1024, 100 + 4 * llama_cpp_options.MARGIN)
    assert llama_cpp_options.pool_tokens(model, 90_000, 8) == 90_000 + 8 * llama_cpp_options.MARGIN


def test_all_parts_of_a_file_are_linked_under_their_names(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00003.gguf"
    assert list(file_links(first)) == [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    assert list(file_links(tmp_path / "m.gguf")) == ["m.gguf"]


def test_the_engine_chooses_the_server(model: Variant, tmp_path: Path) -> None:
    program, log = tmp_path / "llama-server", tmp_path / "log"
    server = make_server(model, program=program, log=log, cache_root=tmp_path)
    assert isinstance(server, LlamaCppServer) and runs_on_processor(model, program)
    assert server.served_name == "m  q4", "a comma would begin another name"
    plain = model.model_copy(update={"serving": Serving(), "gguf": None})
    assert isinstance(make_server(plain, program=program, log=log, cache_root=tmp_path), VllmServer)
    with pytest.raises(RequestError, match="GGUF"):
        LlamaCppServer(model.model_copy(update={"gguf": None}), program=program, log=log)


def test_its_counters_have_the_names_of_the_others() -> None:
    text = """# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 100
llamacpp:prompt_tokens_cached_total 20
llamacpp:tokens_predicted_total 50
llamacpp:requests_processing 1
llamacpp:spec_decode_num_drafts_total 0
llamacpp:spec_decode_num_draft_tokens_total 0
"""
    drafting = """llamacpp:spec_decode_num_drafts_total 3
llamacpp:spec_decode_num_draft_tokens_total 12
llamacpp:spec_decode_num_accepted_tokens_total 7
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
"""
    drafted = {"drafts": 3.0, "drafted_tokens": 12.0, "accepted_tokens": 7.0, "accepted_at_0": 3.0}
    assert counters.parse_counters(drafting) == drafted
    assert counters.parse_counters(text) == {
        "prompt_tokens": 120.0,
        "prefix_cache_query_tokens": 120.0,
        "prefix_cache_hit_tokens": 20.0,
        "generation_tokens": 50.0,
    }


def test_probabilities_of_the_next_token() -> None:
    entry = {"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 5, "logprob": -0.5}, {"id": 7, "logprob": -1.5}]}
    assert parse_token_probabilities({"completion_probabilities": [entry]}) == {"5": -0.5, "7": -1.5}
    with pytest.raises(ValueError, match="another form"):
        parse_token_probabilities({"completion_probabilities": [{"id": 5}]})
    assert parse_token_probabilities({"content": "\ufffd"}) == {}  # half a character: reported with the next token


@pytest.mark.parametrize(
    ("log", "code", "words"),
    [
        ("srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1", 1, "its port was taken"),
        ("error loading model: unknown model architecture: 'mamba9'", 1, "architecture mamba9: serve the imported"),
        ("", 132, "install the engine again on this machine"),
    ],
)
def test_why_it_did_not_start(tmp_path: Path, log: str, code: int, words: str) -> None:
    file = tmp_path / "log"
    file.write_text(log)
    assert words in failures.sentence(file, code)


def test_the_command_for_a_shell_is_that_of_the_engine(model: Variant) -> None:
    serving = model.serving.model_copy(update={"threads": 2, "prefix_caching": False, "kv_cache_dtype": "q8_0"})
    line = serve_command.command(model.model_copy(update={"serving": serving}))
    assert line.startswith("llama-server --model ") and "--threads 2" in line and "--cache-type-v q8_0" in line
    assert serve_command.command(model.model_copy(update={"gguf": None})).startswith("vllm serve ")
