"""Reads a quantized checkpoint as what it computes: dequantized weights, inputs, keys and values rounded as it says.

compressed-tensors: transformers' own loading does not reach every family (GPT-2's Conv1D, Falcon's own linear, experts with zero
points, renamed heads), so weights are dequantized here, by that library, one at a time.
AutoAWQ's GEMM format, which transformers 5 does not read (AutoAWQ 0.2.9, utils/packing_utils.py): `qweight` int32 [in, out / 8],
`qzeros` int32 [groups, out / 8] hold eight unsigned 4-bit numbers each, the outputs in the order 0 2 4 6 1 3 5 7 from the lowest
bits up; `scales` [groups, out]. A weight is (number - zero) x scale.
An FP8 key-value cache as vLLM has it: keys after the rotary embedding, one static scale a layer for keys and one for values.
Knows no scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ModelDamaged
from backend.layered.cache import FP8_MAX
from backend.layered.families import FAMILIES
from backend.layered.source import Packed

if TYPE_CHECKING:
    import torch

METHOD = "compressed-tensors"


class Dequantized(Packed):
    """A checkpoint whose config.json has a `quantization_config` of compressed-tensors, by the names of a plain one.

    Raises ModelDamaged, or ValueError for a configuration that the library does not read.
    """

    def __init__(self, folder: Path) -> None:
        from compressed_tensors.quantization import QuantizationConfig

        super().__init__(folder)
        document = json.loads((folder / "config.json").read_bytes())
        self.quantization = QuantizationConfig.model_validate(_plain(document["quantization_config"]))
        self.transposed = any(row.transposed for row in FAMILIES.get(document["model_type"], ()))
        modules: dict[str, list[str]] = {}
        for name in self.files:
            module, _, local = name.rpartition(".")
            if local.startswith("weight"):
                modules.setdefault(module, []).append(name)
        quantized = {module: names for module, names in modules.items() if f"{module}.weight_scale" in names}
        self.named({f"{module}.weight": names for module, names in quantized.items()})

    def scheme(self, module: str) -> Any:
        """How the module is quantized: the group that names it, else the one for all linears. None where it is not."""
        from compressed_tensors.utils.match import match_name

        if f"{module}.weight" not in self.parts:
            return None
        groups = list(self.quantization.config_groups.values())
        own = (group for group in groups if any(match_name(module, target) for target in group.targets))
        every = (group for group in groups if "Linear" in group.targets)
        return next(own, next(every, groups[0]))

    def weight(self, name: str, held: dict[str, torch.Tensor]) -> torch.Tensor:
        """`transposed` families store it [in, out]."""
        from compressed_tensors.compressors import BaseCompressor

        module = name.removesuffix(".weight")
        scheme = self.scheme(module)
        state = {part.removeprefix(f"{module}."): tensor for part, tensor in held.items()}
        state["weight_scale"] = state["weight_scale"].float()
        if self.transposed and "weight" in state:
            state["weight"] = state["weight"].T.contiguous()
        compressor = BaseCompressor.get_value_from_registry(scheme.format or self.quantization.format)
        weight: torch.Tensor = compressor.decompress(state, scheme)["weight"]
        return weight.T.contiguous() if self.transposed else weight

    def scale(self, name: str) -> torch.Tensor | None:
        """In fp32, where it is stored."""
        return self.one(name).float() if name in self.files else None

    def cache_scales(self, attention: str) -> Scales | None:
        """Of the keys and values of an attention module."""
        found = {name: self.scale(f"{attention}.{name}") for name in CACHE_SCALES}
        return {name: scale for name, scale in found.items() if scale is not None} or None


def round_inputs(source: Dequantized, modules: Iterable[tuple[str, Any]]) -> ExitStack:
    """Let each quantized module, by its name in the checkpoint, read what its scheme makes of its input, by its static scale or
    one a token, until the stack is closed."""
    hooks = ExitStack()
    for name, module in modules:
        scheme = source.scheme(name)
        if scheme is not None and scheme.input_activations is not None:
            hook = _rounding(scheme.input_activations, source.scale(f"{name}.input_scale"))
            hooks.callback(module.register_forward_pre_hook(hook).remove)
    return hooks


def _rounding(args: Any, static: torch.Tensor | None) -> Any:
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    def hook(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if static is not None:
            return fake_quantize(inputs[0], static.to(inputs[0].device), None, args), *inputs[1:]
        scale, zero = compute_dynamic_scales_and_zp(inputs[0], args, module)
        return fake_quantize(inputs[0], scale, zero, args), *inputs[1:]

    return hook


def load(folder: Path) -> Any:
    """The whole model as transformers builds it, in fp32: what is scored where no outline of the family is known.

    Experts that transformers fuses into one module read their input unrounded.
    Raises OSError, ValueError, RuntimeError, KeyError, SafetensorError or ModelDamaged where it cannot be read.
    """
    source = Dequantized(folder)
    extra = ("input_scale", *CACHE_SCALES)
    model = whole(folder, dict(source.read(name for name in source.plain() if not name.endswith(extra))))
    named = dict(model.named_modules())
    stored = [(stored_name, module) for name, module in named.items() for stored_name in _called(name, source)]
    round_inputs(source, stored)
    scales = {name: found for name in named if (found := source.cache_scales(name))}
    round_cache(model, scales)
    return model


def whole(folder: Path, tensors: dict[str, torch.Tensor]) -> Any:
    """A model of plain weights in fp32, as transformers builds it. Raises ModelDamaged where a tensor is missing."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    del config.quantization_config
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    model, info = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ModelDamaged(f"The checkpoint in {folder} lacks {min(info['missing_keys'])}: make it again.")
    return model


def _called(name: str, source: Dequantized) -> list[str]:
    """What the checkpoint calls a module: itself, or without the name of the base model."""
    return [each for each in (name, name.partition(".")[2]) if f"{each}.weight" in source.parts][:1]


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in document if key not in {"dequantize", "use_optimized_inference", "run_compressed"}}


GEMM_PARTS = ("qweight", "qzeros", "scales")
GEMM_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which four bits, counted from the lowest, each output of eight lies."""


def is_gemm(folder: Path) -> bool:
    """Whether config.json says so."""
    config = json.loads((folder / "config.json").read_bytes()).get("quantization_config") or {}
    return config.get("quant_method") == "awq" and str(config.get("version", "")).lower() == "gemm"


class Gemm(Packed):
    """The three parts of each linear as one `weight` [out, in] fp32, turned where the family is. Raises ModelDamaged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kind = json.loads((folder / "config.json").read_bytes())["model_type"]
        self.transposed = any(row.transposed for row in FAMILIES.get(kind, ()))
        linears = [name.removesuffix(".qweight") for name in self.files if name.endswith(".qweight")]
        self.named({f"{linear}.weight": [f"{linear}.{part}" for part in GEMM_PARTS] for linear in linears})

    def weight(self, name: str, held: dict[str, torch.Tensor]) -> torch.Tensor:
        weight = dequantized(*(held[part] for part in self.parts[name]))
        return weight.T.contiguous() if self.transposed else weight


def dequantized(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [out, in] fp32."""
    numbers, zeros = unpacked(qweight), unpacked(qzeros)
    size = len(numbers) // len(zeros)
    return ((numbers - zeros.repeat_interleave(size, 0)).float() * scales.float().repeat_interleave(size, 0)).T.contiguous()


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """int32 [rows, out / 8] as numbers [rows, out]."""
    import torch

    shifts = torch.tensor(GEMM_ORDER, dtype=torch.int32) * 4
    return (torch.bitwise_right_shift(packed[..., None], shifts) & 15).flatten(1)


CACHE_SCALES = ("k_scale", "v_scale")

Scales = dict[str, "torch.Tensor"]
"""`k_scale` and `v_scale` of one attention module."""


def rounding_cache(*, nearest: bool = True) -> Any:
    """A transformers cache that keeps nothing: for layers in its `scales` it returns what came, rounded to E4M3: to the nearest
    number as GPUs convert, or toward zero, which vLLM 0.32 does on processors."""
    from transformers import DynamicCache

    class Rounding(DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scales: dict[int, Scales] = {}

        def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
            scales = self.scales.get(layer)
            return rounded(keys, values, scales, nearest=nearest) if scales else (keys, values)

    return Rounding()


def round_cache(model: Any, scales: dict[str, Scales]) -> None:
    """From now on the attention modules named in `scales` compute with keys and values as an FP8 cache returns them."""
    for name, module in model.named_modules():
        if name in scales:
            module.register_forward_pre_hook(_with_cache(_RoundedCache(scales[name])), with_kwargs=True)


def _with_cache(cache: _RoundedCache) -> Any:
    return lambda _module, args, kwargs: (args, {**kwargs, "past_key_values": cache})


class _RoundedCache:
    """What attention calls a cache: it keeps nothing."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rounded(keys, values, self.scales)


def rounded(
    keys: torch.Tensor, values: torch.Tensor, scales: Scales, *, nearest: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """As an FP8 cache returns them."""
    return _rounded(keys, scales["k_scale"], nearest), _rounded(values, scales["v_scale"], nearest)


def _rounded(values: torch.Tensor, scale: torch.Tensor, nearest: bool) -> torch.Tensor:
    import torch

    scale = scale.to(values.device)
    wanted = (values / scale).clamp(-FP8_MAX, FP8_MAX)
    stored = wanted.to(torch.float8_e4m3fn)
    if not nearest:  # sign and magnitude: one less in the bits is the next number toward zero
        over = stored.float().abs() > wanted.abs()
        stored = (stored.view(torch.uint8) - over.to(torch.uint8)).view(torch.float8_e4m3fn)
    return stored.to(values.dtype) * scale
