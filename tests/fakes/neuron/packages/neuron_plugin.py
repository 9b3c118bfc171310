"""What both of vLLM's plugins for Neuron refuse of an engine's options, by their public sources (contract.toml,
[sources])."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import neuron_recorder as recorder

KEYS = {"num_batched_tokens_buckets", "num_seqs_buckets", "on_device_sampling_config", "kv_segment_size_buckets"}
SAMPLING = {"temperature", "top_k", "top_p", "all_greedy"}


def neuron_config(options: dict[str, Any]) -> dict[str, Any]:
    """Of vllm-neuron 0.21 and later. A key that is not known is stricter here: the published class takes no note of
    it."""
    config: dict[str, Any] = options["additional_config"]["neuron_config"]
    assert set(config) <= KEYS, f"neuron_config has no {', '.join(sorted(set(config) - KEYS))}"
    assert set(config.get("on_device_sampling_config") or {}) <= SAMPLING
    assert config["num_batched_tokens_buckets"][-1] == options["max_num_batched_tokens"], (
        "largest must equal max_num_batched_tokens"
    )
    assert config["num_seqs_buckets"][-1] == options["max_num_seqs"], "largest must equal max_num_seqs"
    assert os.environ["VLLM_NEURON_BACKEND"] in {"neuron_native", "neuron", "vllm_neuron"}
    speculation = options.get("speculative_config")
    if speculation is not None:
        assert speculation["method"] == "eagle3", "Currently the only supported speculation method on Neuron is eagle3"
        assert config["on_device_sampling_config"] is not None
    return config


def graphs(model: str, options: dict[str, Any]) -> list[str]:
    """The key of each graph: shapes, degree and versions, and not where the model lies."""
    config = json.loads((Path(model) / "config.json").read_text())
    base = [config["model_type"], config["hidden_size"], options["tensor_parallel_size"], options.get("kv_cache_dtype")]
    base += [options["max_model_len"], options.get("speculative_config", {}).get("num_speculative_tokens")]
    required = neuron_config(options)
    shapes = [("prefill", size) for size in required["num_batched_tokens_buckets"]]
    shapes += [("decode", size) for size in required["num_seqs_buckets"]]
    return [hashlib.md5(json.dumps([*base, shape, recorder.COMPILER]).encode()).hexdigest() for shape in shapes]


def entry(key: str) -> Path:
    return Path(os.environ["VLLM_CACHE_ROOT"]) / "neuron" / "compile_cache" / key
