"""vLLM with the Neuron plugin, as far as it is used: compiles each bucket below VLLM_CACHE_ROOT when the engine starts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import neuron_recorder as recorder


class SamplingParams:
    def __init__(self, max_tokens: int = 16, temperature: float = 1.0, ignore_eos: bool = False) -> None:
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, model: str, **kwargs: Any) -> None:
        recorder.record("vllm.LLM", model=model, **kwargs)
        config = kwargs["additional_config"]["neuron_config"]
        assert set(config) <= {
            "num_batched_tokens_buckets",
            "num_seqs_buckets",
            "on_device_sampling_config",
            "kv_segment_size_buckets",
        }
        assert config["num_batched_tokens_buckets"][-1] == kwargs["max_num_batched_tokens"], (
            "largest must equal max_num_batched_tokens"
        )
        assert config["num_seqs_buckets"][-1] == kwargs["max_num_seqs"], "largest must equal max_num_seqs"
        assert os.environ["VLLM_NEURON_BACKEND"] in {"neuron_native", "neuron", "vllm_neuron"}
        if not recorder.attached() and os.environ.get("VLLM_NEURON_CPU_COMPILE") != "1":
            raise RuntimeError("No Neuron devices found. Skipping Neuron plugin registration.")
        for size in config["num_batched_tokens_buckets"]:
            entry = Path(os.environ["VLLM_CACHE_ROOT"]) / "neuron" / "compile_cache" / f"{size:032d}"
            entry.mkdir(parents=True)
            (entry / "graph.neff").write_bytes(recorder.compiled([model, size, kwargs["tensor_parallel_size"]]))

    def generate(self, prompts: list[str], sampling_params: SamplingParams) -> list[Any]:
        assert recorder.attached(), "compile mode runs nothing"
        tokens = [0] * sampling_params.max_tokens
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)]) for _ in prompts]
