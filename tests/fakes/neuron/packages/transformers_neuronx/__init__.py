"""A stand-in for transformers-neuronx: the published names and signatures that Whetstone uses, shapes kept, nothing
computed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import neuron_recorder as recorder

from transformers_neuronx.config import NeuronConfig, QuantizationConfig  # noqa: F401


class NeuronModelBase:
    def __init__(self, config: Any, **shapes: Any) -> None:
        self.shapes = {"class": type(self).__name__, **config, **shapes}
        self.neffs: dict[str, bytes] = {}
        self.speculation: list[Any] = []
        self.loaded_from: Path | None = None
        self.on_device = False

    @classmethod
    def from_pretrained(cls, pretrained_model_path: str, *model_args: Any, **kwargs: Any) -> Any:
        recorder.record(
            f"transformers_neuronx.{cls.__name__}.from_pretrained", pretrained_model_path, *model_args, **kwargs
        )
        most, estimate = (kwargs.get(name) for name in ("n_positions", "context_length_estimate"))
        longest = max(most) if isinstance(most, list) else most
        assert not estimate or max(estimate) <= longest, (
            f"Max context_length_estimate {estimate} cannot be more than n_positions."
        )
        config = json.loads((Path(pretrained_model_path) / "config.json").read_text())
        return cls(
            {name: config.get(name) for name in ("model_type", "hidden_size", "num_hidden_layers")},
            *model_args,
            **kwargs,
        )

    def enable_speculative_decoder(
        self, speculation_length: Any, batch_sizes: Any = None, token_tree: Any = None
    ) -> None:
        recorder.record("transformers_neuronx.NeuronModelBase.enable_speculative_decoder", speculation_length)
        assert not self.on_device, "the target is already on the device"
        self.speculation.append(speculation_length)

    def _graphs(self) -> list[dict[str, Any]]:
        quantized = getattr(self.shapes["neuron_config"], "shown", None)
        base = {**{k: v for k, v in self.shapes.items() if k != "neuron_config"}, "config": quantized}
        positions = self.shapes["n_positions"]
        return [
            {**base, "k": k, "at": n}
            for n in (positions if isinstance(positions, list) else [positions])
            for k in [1, *self.speculation]
        ]

    def _compile(self) -> None:
        for graph in self._graphs():
            text = json.dumps(graph, sort_keys=True, default=str)
            self.neffs[hashlib.sha256(text.encode()).hexdigest()[:20] + ".neff"] = recorder.compiled(graph)

    def cpu_compile(self) -> None:
        recorder.record("transformers_neuronx.NeuronModelBase.cpu_compile")
        self._compile()

    def save(self, directory: str, sharded_weights: bool = False) -> None:
        recorder.record("transformers_neuronx.NeuronModelBase.save", directory)
        assert self.neffs, "cannot save a model which has not been successfully compiled"
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, content in self.neffs.items():
            (Path(directory) / name).write_bytes(content)

    def load(self, directory: str) -> None:
        recorder.record("transformers_neuronx.NeuronModelBase.load", directory)
        self.loaded_from = Path(directory)

    def to_neuron(self) -> None:
        recorder.record("transformers_neuronx.NeuronModelBase.to_neuron")
        if self.on_device:
            raise RuntimeError(
                "the weights were handed to the device and are not here any more: to_neuron was called before"
            )
        recorder.runtime(self.shapes["tp_degree"])
        if self.loaded_from is None:
            self._compile()
        elif not self.loaded_from.is_dir():
            raise FileNotFoundError(f"Did not find directory: {self.loaded_from}.")
        else:
            for graph in self._graphs():
                name = (
                    hashlib.sha256(json.dumps(graph, sort_keys=True, default=str).encode()).hexdigest()[:20] + ".neff"
                )
                if not (self.loaded_from / name).exists():
                    raise FileNotFoundError("Could not find a matching NEFF for your HLO in this directory.")
        self.on_device = True

    def sample(self, input_ids: Any, sequence_length: int, start_ids: Any = None, **more: Any) -> Any:
        recorder.record("transformers_neuronx.NeuronModelBase.sample", sequence_length=sequence_length)
        import torch

        assert self.on_device, "to_neuron was not called"
        return torch.zeros((input_ids.shape[0], sequence_length), dtype=torch.long)


class LlamaForSampling(NeuronModelBase):
    def __init__(
        self,
        config: Any,
        *,
        n_positions: Any = 2048,
        batch_size: Any = 1,
        amp: str = "f32",
        tp_degree: int = 2,
        context_length_estimate: Any = None,
        context_unroll: Any = None,
        unroll: Any = None,
        neuron_config: Any = None,
        prefixed_length: int = 0,
        **kwargs: Any,
    ) -> None:
        assert not kwargs, f"unexpected: {kwargs}"
        super().__init__(
            config,
            n_positions=n_positions,
            batch_size=batch_size,
            amp=amp,
            tp_degree=tp_degree,
            context_length_estimate=context_length_estimate,
            neuron_config=neuron_config,
        )
