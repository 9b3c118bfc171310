"""Results of other load generators as people reported them: placeholders, bare Infinity, older forms, other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

NO_TIME = {
    f"{statistic}_{latency}_ms": 0.0 for latency in ("tpot", "itl") for statistic in ("mean", "median", "std", "p99")
}
VLLM: dict[str, Any] = {
    "date": "20260301-101500",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "acme/m",
    "tokenizer_id": "acme/m",
    "num_prompts": 16,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 2.0,
    "completed": 16,
    "failed": 0,
    "total_input_tokens": 2048,
    "total_output_tokens": 16,
    "request_throughput": 8.0,
    "request_goodput": None,
    "output_throughput": 8.0,
    "total_token_throughput": 1032.0,
    "mean_ttft_ms": 120.5,
    "median_ttft_ms": 118.0,
    "std_ttft_ms": 2.0,
    "p99_ttft_ms": 140.0,
    **NO_TIME,
}
"""`vllm bench serve --save-result` of answers of one token: no time between tokens."""


def vllm_one_token() -> dict[str, Any]:
    return VLLM


def vllm_reasoning_zero() -> dict[str, Any]:
    """A chat in which the tool saw no content, only reasoning: no token, and no first one."""
    zero = {f"{statistic}_ttft_ms": 0.0 for statistic in ("mean", "median", "std", "p99")}
    chat = {
        "backend": "openai-chat",
        "endpoint_type": "openai-chat",
        "total_output_tokens": 0,
        "output_throughput": 0.0,
    }
    return VLLM | chat | zero | {"total_token_throughput": 1024.0}


def vllm_infinity() -> dict[str, Any]:
    """The request rate as bare `Infinity`, as Python's json writes it."""
    times = {
        f"{statistic}_{latency}_ms": 10.0 for latency in ("tpot", "itl") for statistic in ("mean", "median", "p99")
    }
    rates = {
        "total_output_tokens": 1024,
        "output_throughput": 512.0,
        "request_rate": float("inf"),
        "p99.9_ttft_ms": 150.0,
    }
    return VLLM | times | rates


def vllm_not_a_number() -> dict[str, Any]:
    """Rates that were divided by zero."""
    return vllm_infinity() | {
        "request_throughput": float("inf"),
        "output_throughput": float("nan"),
        "request_goodput": float("nan"),
    }


def guidellm_04() -> dict[str, Any]:
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "constant", "rate": 2.0}},
        "metrics": {},
    }
    metadata = {"version": 1, "guidellm_version": "0.4.0", "python_version": "3.11", "platform": "Linux"}
    return {"metadata": metadata, "args": {"target": "http://localhost:8000"}, "benchmarks": [benchmark]}


def guidellm_02() -> dict[str, Any]:
    metrics = {"request_latency": {"successful": {"mean": 1.0}}}
    return {"benchmarks": [{"type_": "generative_benchmark", "id_": "x", "run_id": "y", "metrics": metrics}]}


def aiperf() -> dict[str, Any]:
    def figures(unit: str, middle: float) -> dict[str, Any]:
        return {"unit": unit, "avg": middle, "p50": middle, "p99": 1.2 * middle}

    return {
        "schema_version": "1.0",
        "aiperf_version": "0.3.0",
        "benchmark_id": "z",
        "request_throughput": {"unit": "requests/sec", "avg": 4.2},
        "request_latency": figures("ms", 900.0),
        "time_to_first_token": figures("ms", 80.0),
        "inter_token_latency": figures("ms", 10.0),
        "input_config": {"endpoint": {"model_names": ["acme/m"]}, "loadgen": {"concurrency": 4}},
    }


def sglang() -> dict[str, Any]:
    return {
        "backend": "sglang-oai-chat",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 4,
        "duration": 2.0,
        "completed": 16,
        "total_input_tokens": 2048,
        "total_output_tokens": 1024,
        "request_throughput": 8.0,
        "input_throughput": 1024.0,
        "output_throughput": 512.0,
        "total_throughput": 1536.0,
        "mean_e2e_latency_ms": 700.0,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 99.0,
        "p99_ttft_ms": 120.0,
        "mean_tpot_ms": 10.0,
        "mean_itl_ms": 10.0,
    }


READ: dict[str, Callable[[], dict[str, Any]]] = {
    "one-token.json": vllm_one_token,
    "reasoning-zero.json": vllm_reasoning_zero,
    "infinity.json": vllm_infinity,
    "not-a-number.json": vllm_not_a_number,
}
"""File name -> what is in it: read, without the placeholders."""
REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "guidellm-04.json": (
        guidellm_04,
        "is a GuideLLM report of form 1; this version reads form 2, of GuideLLM 0.8: measure with",
    ),
    "guidellm-02.json": (
        guidellm_02,
        "is a GuideLLM report of a form before 1 (GuideLLM 0.2); this version reads form 2",
    ),
    "profile_export_aiperf.json": (
        aiperf,
        "is a result of AIPerf, which is not read here: measure with `whetstone bench URL`",
    ),
    "sglang.jsonl": (
        sglang,
        "is a result of SGLang's bench_serving, which is not read here: measure with `whetstone bench URL`",
    ),
}
"""File name -> what is in it, and the sentence that refuses it."""


def written(*documents: dict[str, Any]) -> bytes:
    """As the tools write it: one document a line, bare Infinity and NaN."""
    return "\n".join(map(json.dumps, documents)).encode()


def refused_files() -> Sequence[tuple[str, bytes, str]]:
    """(name, content, sentence) of each that is refused; an SGLang file has one line a run."""
    return [
        (name, written(*[make()] * (2 if name.endswith("l") else 1)), sentence)
        for name, (make, sentence) in REFUSED.items()
    ]
