"""neuronx_distributed_inference.models.config as far as it is used."""

from __future__ import annotations

from typing import Any

import neuron_recorder as recorder

KNOWN = {
    "tp_degree",
    "batch_size",
    "ctx_batch_size",
    "seq_len",
    "max_context_length",
    "padding_side",
    "save_sharded_checkpoint",
    "torch_dtype",
    "enable_bucketing",
    "context_encoding_buckets",
    "token_generation_buckets",
    "is_continuous_batching",
    "quantized",
    "quantization_dtype",
    "quantization_type",
    "quantized_checkpoints_path",
    "kv_cache_quant",
    "speculation_length",
    "enable_fused_speculation",
    "on_device_sampling_config",
    "enable_eagle_speculation",
    "is_eagle3",
    "is_eagle_draft",
}


class NeuronConfig:
    def __init__(self, **kwargs: Any) -> None:
        recorder.record("neuronx_distributed_inference.models.config.NeuronConfig", **kwargs)
        assert not (unknown := set(kwargs) - KNOWN), f"Unexpected keyword arguments: {unknown}"
        if kwargs.get("quantized"):
            assert kwargs.get("quantized_checkpoints_path") is not None, "quantized_checkpoints_path is required"
        for name in ("context_encoding_buckets", "token_generation_buckets"):
            assert max(kwargs.get(name) or [0]) <= kwargs["seq_len"], f"{name} should be <= {kwargs['seq_len']}"
        self.__dict__.update(kwargs)
        self.shown = kwargs


class InferenceConfig:
    def __init__(
        self, neuron_config: NeuronConfig, fused_spec_config: Any = None, load_config: Any = None, **kwargs: Any
    ) -> None:
        recorder.record("neuronx_distributed_inference.models.config.InferenceConfig", neuron_config)
        self.neuron_config, self.fused_spec_config = neuron_config, fused_spec_config
        load_config(self)


class FusedSpecNeuronConfig:
    def __init__(
        self, worker_cls: Any, draft_config: Any = None, draft_model_path: Any = None, draft_model_cls: Any = None
    ) -> None:
        recorder.record(
            "neuronx_distributed_inference.models.config.FusedSpecNeuronConfig",
            worker_cls,
            draft_model_path=draft_model_path,
        )
        assert draft_config.neuron_config.enable_fused_speculation is False, "nested fused speculation"
        shown = draft_config.neuron_config
        if getattr(shown, "enable_eagle_speculation", False):
            assert shown.is_eagle_draft and shown.speculation_length > 0, (
                "eagle needs speculation for the last draft run"
            )
        else:
            assert shown.speculation_length == 0
        self.draft_config = draft_config


class OnDeviceSamplingConfig:
    def __init__(self, **kwargs: Any) -> None:
        recorder.record("neuronx_distributed_inference.models.config.OnDeviceSamplingConfig", **kwargs)
        assert set(kwargs) <= {"do_sample", "top_k", "top_p", "temperature", "dynamic", "deterministic", "global_topk"}
