"""neuronx_distributed_inference.utils.constants: MODEL_TYPES with one class, and NeuronApplicationBase below it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import neuron_recorder as recorder

from neuronx_distributed_inference.models.config import InferenceConfig, NeuronConfig

if os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") not in {"trn1", "trn2"}:
    raise ValueError(f"{os.environ.get('NEURON_PLATFORM_TARGET_OVERRIDE')!r} is not a valid hardware")


class NeuronLlamaForCausalLM:
    _model_cls = "NeuronLlamaModel"

    def __init__(self, model_path: str, config: Any = None, neuron_config: Any = None) -> None:
        recorder.record("neuronx_distributed_inference.NeuronApplicationBase", model_path, config)
        self.model_path, self.config, self.neuron_config = model_path, config, config.neuron_config
        self.is_loaded_to_neuron = False

    @classmethod
    def get_config_cls(cls) -> type[InferenceConfig]:
        return InferenceConfig

    @classmethod
    def get_neuron_config_cls(cls) -> type[NeuronConfig]:
        return NeuronConfig

    @classmethod
    def save_quantized_state_dict(cls, model_path: str, config: Any) -> None:
        recorder.record(
            "neuronx_distributed_inference.NeuronApplicationBase.save_quantized_state_dict", model_path, config
        )
        (Path(config.neuron_config.quantized_checkpoints_path) / "model.safetensors").write_bytes(b"int8")

    def compile(
        self, compiled_model_path: str, debug: bool = False, pre_shard_weights_hook: Any = None, dry_run: bool = False
    ) -> None:
        recorder.record("neuronx_distributed_inference.NeuronApplicationBase.compile", compiled_model_path)
        config = self.neuron_config
        if config.shown.get("quantized"):
            assert list(Path(config.quantized_checkpoints_path).iterdir()), "the quantized checkpoint is not there"
        Path(compiled_model_path).mkdir(parents=True, exist_ok=True)
        (Path(compiled_model_path) / "neuron_config.json").write_text(json.dumps({"tp_degree": config.tp_degree}))
        graphs = [
            recorder.compiled([self.config.hf["model_type"], n, config.tp_degree])
            for n in config.context_encoding_buckets
        ]
        (Path(compiled_model_path) / "model.pt").write_bytes(b"".join(graphs))
        if config.shown.get("save_sharded_checkpoint"):
            (Path(compiled_model_path) / "weights").mkdir()
            for rank in range(config.tp_degree):
                (Path(compiled_model_path) / f"weights/tp{rank}_sharded_checkpoint.safetensors").write_bytes(b"weights")

    def load(
        self,
        compiled_model_path: str,
        start_rank_id: Any = None,
        local_ranks_size: Any = None,
        skip_warmup: bool = False,
    ) -> None:
        recorder.record("neuronx_distributed_inference.NeuronApplicationBase.load", compiled_model_path)
        if not (Path(compiled_model_path) / "model.pt").exists():
            raise ValueError(f"The provided filename {compiled_model_path}model.pt does not exist")
        recorder.runtime(self.neuron_config.tp_degree)
        self.is_loaded_to_neuron = True


MODEL_TYPES = {"llama": {"causal-lm": NeuronLlamaForCausalLM}}
