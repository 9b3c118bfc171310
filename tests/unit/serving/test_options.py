"""A variant's settings as vLLM's options, its counters, its ports, and the refusals before anything starts."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidModel, PortTaken, RequestError
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.load import counters
from backend.domain.needs.kv_cache_tokens import MOST_RESERVED_BYTES
from backend.domain.recipe.recipe import ENGINE_OPTIONS, Serving
from backend.serving import vllm_options
from backend.serving.process import check_port, free_port
from backend.serving.vllm import VllmServer
from backend.serving.vllm_plugin.whetstone_vllm import FORK, LAYERS

CONFIG = {
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 2048,
}


def variant(
    folder: Path, serving: Serving | None = None, speculation: Speculation | None = None, **config: int
) -> Variant:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return Variant(
        name="v",
        source="v",
        kind="model",
        model_path=str(folder),
        serving=serving or Serving(),
        speculation=speculation,
    )


def written(serving: Serving, speculation: Speculation | None = None) -> list[str]:
    chosen = Variant(name="v", source="v", kind="model", model_path="/m", serving=serving, speculation=speculation)
    return vllm_options.server_arguments(chosen, port=1234, served_name="a name", kv_cache_bytes=7)


def test_defaults_leave_vllm_its_own_choices() -> None:
    assert written(Serving()) == [
        *("--model", "target-model", "--served-model-name=a name", "--host", "127.0.0.1", "--port", "1234"),
        *(
            "--disable-uvicorn-access-log",
            "--enable-prompt-tokens-details",
            "--dtype",
            "auto",
            "--kv-cache-dtype",
            "auto",
            "--tensor-parallel-size",
            "1",
        ),
        *("--kv-cache-memory-bytes", "7"),
    ]


def test_every_serving_field_reaches_vllm() -> None:
    serving = Serving(
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=3,
        tensor_parallel=2,
        kv_cache_dtype="fp8",
        prefix_caching=False,
        chunked_prefill=True,
        enforce_eager=True,
        max_num_batched_tokens=256,
        block_size=32,
        attention_backend="FLASH_ATTN",
        performance_mode="throughput",
        pipeline_parallel=3,
        data_parallel=4,
        expert_parallel=True,
    )
    line = " ".join(written(serving))
    for part in (
        "--max-num-batched-tokens 256",
        "--block-size 32",
        "--attention-backend FLASH_ATTN",
        "--performance-mode throughput",
        "--dtype bfloat16",
        "--max-model-len 512",
        "--max-num-seqs 3",
        "--tensor-parallel-size 2",
        "--pipeline-parallel-size 3",
        "--data-parallel-size 4",
        "--enable-expert-parallel",
        "--kv-cache-dtype fp8",
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
        "--enforce-eager",
    ):
        assert part in line
    of_others = {name for name, engines in ENGINE_OPTIONS.items() if "vllm" not in engines}
    others = {"engine", *of_others}
    assert set(Serving.model_fields) - set(serving.model_dump(exclude_defaults=True)) == others


def test_speculation_is_one_json_argument() -> None:
    line = written(Serving(), Speculation(method="draft", tokens=4, draft_path="/d"))
    assert json.loads(line[line.index("--speculative-config") + 1]) == {
        "method": "draft_model",
        "model": "draft-model",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }
    line = written(Serving(), Speculation(method="ngram", tokens=3))
    ngram = json.loads(line[line.index("--speculative-config") + 1])
    assert ngram == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def test_the_cache_holds_32_full_sequences_of_the_starter(tmp_path: Path) -> None:
    token = 2 * 3 * 2 * 64 * 2
    assert vllm_options.kv_cache_bytes(variant(tmp_path / "m")) == 32 * (2048 + 128) * token


def test_a_known_load_takes_no_more_cache_than_it_needs_and_vllm_insists_on(tmp_path: Path) -> None:
    token, model = 2 * 3 * 2 * 64 * 2, variant(tmp_path / "m")
    assert vllm_options.kv_cache_bytes(model, 10 * 128) == (2048 + 128) * token, "one sequence of the model's context"
    assert vllm_options.kv_cache_bytes(model, 40 * 128) == 41 * 128 * token
    assert vllm_options.kv_cache_bytes(model, 10**9) == vllm_options.kv_cache_bytes(model)


@pytest.mark.parametrize(
    ("config", "layers", "width", "context"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, 12, 768, 1024),
        ({"n_layer": 24, "num_attention_heads": 16, "n_embed": 1024}, 24, 1024, 2048),
        ({"n_layers": 32, "n_heads": 32, "d_model": 4096, "max_seq_len": 8192}, 32, 4096, 8192),
        (
            {
                "text_config": {
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 1,
                    "hidden_size": 64,
                    "max_position_embeddings": 256,
                }
            },
            2,
            16,
            256,
        ),
    ],
)
def test_the_cache_is_sized_whatever_the_family_calls_its_sizes(
    tmp_path: Path, config: dict[str, Any], layers: int, width: int, context: int
) -> None:
    chosen = variant(tmp_path / "m", Serving(max_num_seqs=1))
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert vllm_options.kv_cache_bytes(chosen) == 2 * (2 * layers * width * 2) * (context + 128)


def test_a_config_without_a_size_is_one_sentence(tmp_path: Path) -> None:
    chosen = variant(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("{}")
    with pytest.raises(InvalidModel, match="states no `num_attention_heads`"):
        vllm_options.kv_cache_bytes(chosen)


def test_a_draft_adds_its_layers_to_the_cache(tmp_path: Path) -> None:
    variant(tmp_path / "d", num_hidden_layers=1)
    drafted = variant(tmp_path / "m", speculation=Speculation(method="draft", tokens=4, draft_path=str(tmp_path / "d")))
    plain = vllm_options.kv_cache_bytes(variant(tmp_path / "m"))
    assert vllm_options.kv_cache_bytes(drafted) * 3 == plain * 4


@given(
    layers=st.integers(1, 100),
    heads=st.integers(1, 64),
    length=st.integers(16, 200_000),
    sequences=st.none() | st.integers(1, 512),
    kv=st.sampled_from(["auto", "fp8"]),
)
def test_the_cache_always_holds_a_sequence_and_is_bounded_where_one_fits(
    tmp_path_factory: pytest.TempPathFactory, layers: int, heads: int, length: int, sequences: int | None, kv: str
) -> None:
    serving = Serving(max_model_len=length, max_num_seqs=sequences, kv_cache_dtype="fp8" if kv == "fp8" else "auto")
    folder = tmp_path_factory.getbasetemp() / "hypothesis-model"
    sized = variant(folder, serving, num_hidden_layers=layers, num_key_value_heads=heads, num_attention_heads=heads)
    one = 2 * layers * heads * (512 // heads) * (1 if kv == "fp8" else 2) * length
    kv_cache_bytes = vllm_options.kv_cache_bytes(sized)
    assert kv_cache_bytes >= one
    assert kv_cache_bytes <= max(MOST_RESERVED_BYTES, 2 * one + 4 * 128 * 2 * layers * 512 * 2)


def test_a_folder_without_config_is_refused_in_one_sentence(tmp_path: Path) -> None:
    removed = Variant(name="v", source="v", kind="model", model_path=str(tmp_path))
    with pytest.raises(InvalidModel, match=r"config\.json cannot be read"):
        vllm_options.kv_cache_bytes(removed)


def test_the_server_sees_no_secrets_and_nothing_that_changes_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "VLLM_ATTENTION_BACKEND", "PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("WHETSTONE_JOB", "j-7")
    chosen = vllm_options.environment(tmp_path, cpu=True, openmp=tmp_path / "libiomp5.so")
    assert "x" not in chosen.values()
    assert chosen["WHETSTONE_JOB"] == "j-7"
    assert chosen["VLLM_HOST_IP"] == "127.0.0.1"
    assert chosen["LD_PRELOAD"] == str(tmp_path / "libiomp5.so")


def test_a_model_runs_in_the_engines_forked_process_unless_cut_over_several() -> None:
    one, cut = vllm_options.tuning(), vllm_options.tuning(tensor_parallel=2)
    assert one.arguments == ("--distributed-executor-backend", "uni", vllm_options.NO_NCCL)
    assert one.environment[FORK] == one.environment[LAYERS] == "1" and not {FORK, LAYERS} & set(cut.environment)
    assert one.environment["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert cut.arguments == ()
    assert str(max(os.sched_getaffinity(0))) in cut.environment["VLLM_CPU_OMP_THREADS_BIND"]


def test_a_gpu_server_gets_no_cpu_variables(tmp_path: Path) -> None:
    chosen = vllm_options.environment(tmp_path, cpu=False, openmp=tmp_path / "lib.so")
    assert not [name for name in chosen if "CPU" in name or name == "LD_PRELOAD"]


def test_counters_are_summed_over_engines_and_named() -> None:
    text = """# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a b"} 1100.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="a b"} 100.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="a b"} 1.7952266034493320e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="a b"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a b",position="0"} 15.0
vllm:generation_tokens_total{engine="0",model_name="a b"} 3.2e+02
python_info{implementation="CPython"} 1.0
"""
    positions = {"accepted_at_0": 15.0}
    assert counters.parse_counters(text) == {
        "drafted_tokens": 1200.0,
        "accepted_tokens": 40.0,
        "generation_tokens": 320.0,
        **positions,
    }


def test_an_asked_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        chosen = variant(tmp_path / "m")
        log = tmp_path / "log"
        server = VllmServer(chosen, python=Path("/no/python"), log=log, cache_root=tmp_path, port=port)
        with pytest.raises(PortTaken, match=f"Port {port} is not free") as caught:
            server.start()
        assert caught.value.exit_code == 2
        assert not log.exists()


def test_a_free_port_is_free() -> None:
    check_port(free_port())


def test_a_url_cannot_be_served() -> None:
    url = Variant(name="v", source="v", kind="url", url="http://127.0.0.1:1/v1")
    with pytest.raises(RequestError, match="has no model folder"):
        VllmServer(url, python=Path("p"), log=Path("l"), cache_root=Path("c"))
