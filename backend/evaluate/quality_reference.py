"""Loads a compressed-tensors checkpoint as what it computes: dequantized weights in fp32, inputs rounded as it says.

transformers' own loading does not reach every family (GPT-2's Conv1D, Falcon's own linear, experts with zero points, renamed
heads), so weights are dequantized here, by compressed-tensors, and handed to transformers as a plain model. Knows no scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.evaluate import quality_cache

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]


def load(folder: Path) -> Any:
    """The model in `folder`, whose config.json has a `quantization_config` of compressed-tensors.

    Keys and values are rounded too where it has scales for them.
    Raises OSError, ValueError, RuntimeError, KeyError or SafetensorError where it cannot be read.
    """
    import torch
    from compressed_tensors.quantization import QuantizationConfig
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    quantization = QuantizationConfig.model_validate(_plain(config.quantization_config))
    del config.quantization_config
    quantized: dict[str, torch.Tensor | None] = {}
    state = dict(_dequantized(folder, quantization, quantized, transposed=config.model_type == "gpt2"))
    scales = quality_cache.taken(state)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, trust_remote_code=False
    )
    _round_inputs(model, quantization, quantized)
    quality_cache.round_cache(model, scales)
    return model


def _plain(document: Any) -> dict[str, Any]:
    fields = {key: document[key] for key in document} if isinstance(document, dict) else document.to_dict()
    return {key: value for key, value in fields.items() if key not in {"dequantize", "use_optimized_inference", "run_compressed"}}


def _scheme(quantization: Any, module: str) -> Any:
    """The scheme of a quantized module by its name in the checkpoint: that of the group which names it, else of all linears."""
    groups = list(quantization.config_groups.values())
    return next((group for group in groups if module in group.targets), groups[0])


def _dequantized(
    folder: Path, quantization: Any, quantized: dict[str, torch.Tensor | None], transposed: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a plain checkpoint, floats in fp32.

    `quantized` is filled with the modules that were dequantized, and the static scale of their input where there is one.
    """
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            modules: dict[str, list[str]] = {}
            for name in file.keys():  # noqa: SIM118 - not a mapping
                modules.setdefault(name.rpartition(".")[0], []).append(name)
            for module, names in modules.items():
                held = {name.rpartition(".")[2]: file.get_tensor(name) for name in names}
                if "weight_scale" in held:
                    quantized[module] = held.pop("input_scale", None)
                    held = _weight(held, _scheme(quantization, module), quantization.format, transposed)
                yield from ((f"{module}.{local}", _float(tensor)) for local, tensor in held.items())


def _weight(held: Tensors, scheme: Any, form: str, transposed: bool) -> Tensors:
    """The dequantized `weight`, and `bias` where there is one; `transposed` families store it [in, out]."""
    from compressed_tensors.compressors import BaseCompressor

    state = {**held, "weight_scale": held["weight_scale"].float()}
    bias = state.pop("bias", None)
    if transposed and "weight" in state:
        state["weight"] = state["weight"].T.contiguous()
    weight = BaseCompressor.get_value_from_registry(scheme.format or form).decompress(state, scheme)["weight"]
    return {"weight": weight.T.contiguous() if transposed else weight} | ({} if bias is None else {"bias": bias})


def _float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _round_inputs(model: Any, quantization: Any, quantized: dict[str, torch.Tensor | None]) -> None:
    """Let every quantized linear read what the scheme makes of its input, by its static scale or one a token.

    Experts that transformers fuses into one module read their input unrounded.
    """
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    def rounding(args: Any, static: torch.Tensor | None) -> Any:
        def hook(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            scale, zero = (static, None) if static is not None else compute_dynamic_scales_and_zp(inputs[0], args, module)
            return fake_quantize(inputs[0], scale, zero, args), *inputs[1:]

        return hook

    for name, module in model.named_modules():
        stored = next((each for each in (name, name.partition(".")[2]) if each in quantized), None)
        args = None if stored is None else _scheme(quantization, stored).input_activations
        if stored is not None and args is not None:
            static = quantized[stored]
            module.register_forward_pre_hook(rounding(args, None if static is None else static.float()))
