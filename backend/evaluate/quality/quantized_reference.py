"""Computes as a quantized checkpoint does: dequantized weights, with inputs, keys and values rounded as configured.

The configuration is that of compressed-tensors. An FP8 key-value cache is as in vLLM: keys after the rotary embedding,
one static scale a layer for keys and one for values. Knows no scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ModelDamaged
from backend.domain.model.stored_weights import is_harmless
from backend.layered.dequantize import CompressedTensorsSource
from backend.layered.kv_cache_range import FP8_MAX
from backend.layered.rounded_inputs import round_input

if TYPE_CHECKING:
    import torch


LAYER = re.compile(r"^.*?\.\d+\.")
"""Matches the path of a layer at the beginning of a tensor's name."""


def round_inputs(source: CompressedTensorsSource, modules: Iterable[tuple[str, Any]]) -> ExitStack:
    """Make each quantized module round its input as its scheme says, until the returned stack is closed.

    Modules go by their names in the checkpoint; the scale is static or one per token.
    """
    hooks = ExitStack()
    for name, module in modules:
        scheme = source.scheme(name)
        if scheme is not None and scheme.input_activations is not None:
            scales = (source.scale(f"{name}.{local}") for local in ("input_scale", "input_global_scale"))
            hook = _rounding(scheme.input_activations, *scales)
            hooks.callback(module.register_forward_pre_hook(hook).remove)
    return hooks


def _rounding(args: Any, static: torch.Tensor | None, global_scale: torch.Tensor | None) -> Any:
    def hook(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return round_input(inputs[0], args, static, global_scale), *inputs[1:]

    return hook


def load_quantized(folder: Path) -> Any:
    """Load the whole model in fp32 as transformers builds it, for families without an outline.

    Experts that transformers fuses into one module read their input unrounded.
    Raises OSError, ValueError, RuntimeError, KeyError, SafetensorError or ModelDamaged if it cannot be read.
    """
    # Build the model with its stored weights, dequantized.
    source = CompressedTensorsSource(folder)
    model = build_plain_model(folder, dict(source.read(source.plain())))
    # Find what each module is called in the checkpoint, and its scales of keys and values.
    named = dict(model.named_modules())
    stored = []
    scales: dict[str, Scales] = {}
    for name, module in named.items():
        stored += [(stored_name, module) for stored_name in _checkpoint_names(name, source)]
        module_scales = cache_scales(source, name)
        if module_scales:
            scales[name] = module_scales
    # Round inputs and the cache as the checkpoint says.
    round_inputs(source, stored)
    round_cache(model, scales)
    return model


def build_plain_model(folder: Path, tensors: dict[str, torch.Tensor]) -> Any:
    """Build a model of plain weights in fp32 with transformers. Raises ModelDamaged if a tensor is missing."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    model, info = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
    )
    check_loaded(model, info)
    return model


def check_loaded(model: Any, info: dict[str, Any]) -> None:
    """Raise ModelDamaged if transformers filled a tensor with random numbers, or left one of its layers unread."""
    if info["missing_keys"]:
        raise ModelDamaged(f"{min(info['missing_keys'])} is missing: make it again.")
    layers = {_layer(name) for name in model.state_dict()} - {None}
    skipped = [name for name in info["unexpected_keys"] if _layer(name) in layers]
    unread = min((name for name in skipped if not is_harmless(name)), default=None)
    if unread is not None:
        raise ModelDamaged(
            f"{unread} belongs to no part of its layer, so it would be left out: export the model again."
        )


def _layer(name: str) -> str | None:
    """Return the path of the layer that a tensor belongs to, or None."""
    match = LAYER.match(name)
    return match[0] if match else None


def _checkpoint_names(name: str, source: CompressedTensorsSource) -> list[str]:
    """Return the module's name in the checkpoint, with or without the name of the base model; empty if it has none."""
    candidates = (name, name.partition(".")[2])
    return [candidate for candidate in candidates if f"{candidate}.weight" in source.parts][:1]


CACHE_SCALES = ("k_scale", "v_scale")

Scales = dict[str, "torch.Tensor"]
"""The scales of one attention module, `k_scale` and `v_scale`."""


def cache_scales(source: CompressedTensorsSource, attention: str) -> Scales | None:
    """Return the scales of an attention module's keys and values, or None."""
    scales = {name: source.scale(f"{attention}.{name}") for name in CACHE_SCALES}
    return {name: scale for name, scale in scales.items() if scale is not None} or None


def rounding_cache(*, nearest: bool = True) -> Any:
    """Return a transformers cache that stores nothing and rounds to E4M3 the layers in its `scales`.

    It rounds to the nearest number, as GPUs convert, or toward zero, as vLLM 0.32 does on processors.
    """
    from transformers import DynamicCache

    class Rounding(DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scales: dict[int, Scales] = {}

        def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
            scales = self.scales.get(layer)
            return round_to_fp8(keys, values, scales, nearest=nearest) if scales else (keys, values)

    return Rounding()


def round_cache(model: Any, scales: dict[str, Scales]) -> None:
    """Make the attention modules named in `scales` use keys and values as an FP8 cache returns them, from now on."""
    for name, module in model.named_modules():
        if name in scales:
            module.register_forward_pre_hook(_with_cache(_RoundedCache(scales[name])), with_kwargs=True)


def _with_cache(cache: _RoundedCache) -> Any:
    return lambda _module, args, kwargs: (args, {**kwargs, "past_key_values": cache})


class _RoundedCache:
    """A cache, as attention calls it, that stores nothing."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return round_to_fp8(keys, values, self.scales)


def round_to_fp8(
    keys: torch.Tensor, values: torch.Tensor, scales: Scales, *, nearest: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as an FP8 cache returns them."""
    return _round_one(keys, scales["k_scale"], nearest), _round_one(values, scales["v_scale"], nearest)


def _round_one(values: torch.Tensor, scale: torch.Tensor, nearest: bool) -> torch.Tensor:
    import torch

    scale = scale.to(values.device)
    scaled = (values / scale).clamp(-FP8_MAX, FP8_MAX)
    stored = scaled.to(torch.float8_e4m3fn)
    if not nearest:  # sign and magnitude: one less in the bits is the next number toward zero
        over = stored.float().abs() > scaled.abs()
        stored = (stored.view(torch.uint8) - over.to(torch.uint8)).view(torch.float8_e4m3fn)
    return stored.to(values.dtype) * scale
