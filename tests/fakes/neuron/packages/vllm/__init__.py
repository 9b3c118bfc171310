"""vLLM with the Neuron plugin, as far as it is used: compiles each bucket below VLLM_CACHE_ROOT when the engine
starts."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import neuron_plugin as plugin
import neuron_recorder as recorder


class SamplingParams:
    def __init__(self, max_tokens: int = 16, temperature: float = 1.0, ignore_eos: bool = False) -> None:
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, model: str, **kwargs: Any) -> None:
        recorder.record("vllm.LLM", model=model, **kwargs)
        keys = plugin.graphs(model, kwargs)
        alone = os.environ.get("VLLM_NEURON_CPU_COMPILE") == "1"
        if not recorder.attached() and not alone:
            raise RuntimeError("No Neuron devices found. Skipping Neuron plugin registration.")
        assert not (alone and kwargs.get("speculative_config")), (
            "Speculative decoding is not supported with VLLM_NEURON_CPU_COMPILE mode."
        )
        for key in keys:
            plugin.entry(key).mkdir(parents=True)
            (plugin.entry(key) / "graph.neff").write_bytes(recorder.compiled(key))

    def generate(self, prompts: list[str], sampling_params: SamplingParams) -> list[Any]:
        assert recorder.attached(), "compile mode runs nothing"
        tokens = [0] * sampling_params.max_tokens
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)]) for _ in prompts]
