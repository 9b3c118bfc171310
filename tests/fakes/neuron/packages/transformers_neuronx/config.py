"""transformers_neuronx.config as far as it is used."""

from __future__ import annotations

from typing import Any

import neuron_recorder as recorder


class QuantizationConfig:
    def __init__(
        self,
        quant_dtype: str = "s8",
        dequant_dtype: str = "f16",
        quantize_method: str = "vector_dynamic",
        quantize_attn: bool = True,
        no_quantize_list: Any = (),
    ) -> None:
        recorder.record("transformers_neuronx.QuantizationConfig", quant_dtype=quant_dtype, dequant_dtype=dequant_dtype)
        if quant_dtype not in {"s8", "f8e4m3fn"}:
            raise NotImplementedError(f"{quant_dtype} is not implemented.")
        self.shown = f"{quant_dtype}->{dequant_dtype}"


class KVCacheQuantizationConfig:
    def __init__(
        self, quant_dtype: str = "s8", dequant_dtype: str = "bf16", quantize_method: str = "direct_cast"
    ) -> None:
        recorder.record(
            "transformers_neuronx.config.KVCacheQuantizationConfig",
            quant_dtype=quant_dtype,
            dequant_dtype=dequant_dtype,
        )
        if quant_dtype not in {"s8", "f16", "bf16", "f8e4m3fn"}:
            raise NotImplementedError(f"{quant_dtype} is not implemented.")
        self.shown = f"{quant_dtype}->{dequant_dtype}"


class NeuronConfig:
    def __init__(
        self,
        *,
        quant: QuantizationConfig | None = None,
        kv_cache_quant: KVCacheQuantizationConfig | None = None,
        **kwargs: Any,
    ) -> None:
        recorder.record("transformers_neuronx.NeuronConfig", quant=quant, kv_cache_quant=kv_cache_quant)
        assert not kwargs, f"Unexpected NeuronConfig keyword arguments: {kwargs}"
        self.shown = [getattr(each, "shown", None) for each in (quant, kv_cache_quant)]
