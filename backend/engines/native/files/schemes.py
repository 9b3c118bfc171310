"""The compressed-tensors schemes that are written, and the `quantization_config` that says them. No arithmetic.

vLLM 0.32.0 (layers/quantization/compressed_tensors) is what must read them: weights in groups along the input or one
scale an output channel as `pack-quantized` (4 and 8 bits), INT8 as `int-quantized`, FP8 as `float-quantized`. It
refuses `sparsity_config` and activation ordering by group, so pruned weights are stored dense and GPTQ keeps the groups
where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from backend.engines.native.methods.rounding import Rounding

if TYPE_CHECKING:
    import torch

Activations = Literal["dynamic", "static"]
FourBitActivations = Literal["dynamic", "none"]
Other = tuple[Rounding, list[str]]
"""A rounding, and the names of the modules that it is for."""


def weight_only(
    bits: int, group_size: int | None, *, symmetric: bool, dtype: torch.dtype, reordered: bool = False
) -> Rounding:
    """Make W4A16 or W8A16: integers in groups of `group_size` along the input; None: one scale an output channel.

    `dtype` is that of the scales, the 16-bit one of the model. `reordered`: GPTQ took the columns in activation order;
    the groups are static, so readers need not know.
    """
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    shape: dict[str, Any] = {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    weights = QuantizationArgs(num_bits=bits, symmetric=symmetric, actorder="static" if reordered else None, **shape)
    return Rounding(QuantizationScheme(targets=["Linear"], weights=weights), "pack-quantized", dtype)


def int8(activations: Activations) -> Rounding:
    """Make W8A8: INT8 symmetric, weights one scale an output channel, activations one a token or, static, a tensor."""
    return _channels("int", "channel", activations, "int-quantized")


def fp8(activations: Activations) -> Rounding:
    """Make FP8 E4M3: dynamic has one scale an output channel and one a token; static one a matrix and one a tensor.

    vLLM's FP8 kernels take a static activation scale everywhere only with one scale a matrix
    (vllm/model_executor/kernels/linear/scaled_mm/pytorch.py). The format: Micikevicius et al. 2022 (arXiv 2209.05433).
    """
    return _channels("float", "tensor" if activations == "static" else "channel", activations, "float-quantized")


def fp8_block() -> Rounding:
    """Make FP8 E4M3 with one scale a block of 128 x 128 weights, and one for 128 inputs of a token while serving.

    The form of DeepSeek-V3 (arXiv 2412.19437, section 3.3).
    """
    import torch

    return _preset("FP8_BLOCK", "float-quantized", torch.float32)


def nvfp4(activations: FourBitActivations) -> Rounding:
    """Make NVFP4: E2M1 in groups of 16 with an E4M3 scale each, under one fp32 scale a matrix.

    Dynamic: inputs alike, their fp32 scale from the calibration text; none: weights only.
    """
    import torch

    return _preset("NVFP4" if activations == "dynamic" else "NVFP4A16", "nvfp4-pack-quantized", torch.float8_e4m3fn)


def mxfp4() -> Rounding:
    """Make MXFP4: E2M1 in groups of 32, one power of two each, weights and inputs (OCP Microscaling Formats 1.0)."""
    import torch

    return _preset("MXFP4", "mxfp4-pack-quantized", torch.uint8)


def mxfp8() -> Rounding:
    """Make MXFP8: E4M3 in groups of 32, one power of two each, weights and inputs (OCP Microscaling Formats 1.0)."""
    import torch

    return _preset("MXFP8", "mxfp8-quantized", torch.uint8)


def w4a8_fp8(dtype: torch.dtype, *, reordered: bool = False) -> Rounding:
    """Make W4A8-FP8: INT4 weights in symmetric groups of 128, and an FP8 scale a token while serving.

    `dtype` is that of the weights' scales; `reordered` as in `weight_only`.
    """
    rounding = _preset("W4AFP8", "pack-quantized", dtype)
    if reordered:
        rounding.scheme.weights.actorder = "static"
    return rounding


def _preset(name: str, form: str, scale_dtype: torch.dtype) -> Rounding:
    """Make a rounding of the library's scheme of that name."""
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    return Rounding(preset_name_to_scheme(name, ["Linear"]), form, scale_dtype)


def integers(bits: int) -> Rounding:
    """Make integers of `bits` for weights, one scale an output channel, and for inputs, one a token: both symmetric."""
    return _channels("int", "channel", "dynamic", "pack-quantized", bits)


def _channels(kind: str, strategy: str, activations: Activations, form: str, bits: int = 8) -> Rounding:
    import torch
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(num_bits=bits, type=kind, symmetric=True, strategy=strategy)
    dynamic = activations == "dynamic"
    inputs = QuantizationArgs(
        num_bits=bits, type=kind, symmetric=True, strategy="token" if dynamic else "tensor", dynamic=dynamic
    )
    return Rounding(
        QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs), form, torch.float32
    )


def quantization_config(
    rounding: Rounding | None, ignored: list[str], *, kv_cache: bool = False, others: Sequence[Other] = ()
) -> dict[str, Any]:
    """Make `quantization_config` of config.json: `rounding` for every linear but those ignored and those of `others`.

    Each rounding has a config group and a format of its own, which vLLM prefers to the common one
    (compressed_tensors.py, get_scheme_dict). Without any the weights stay 16-bit and only the cache has scales.
    """
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationStatus

    # 1. A group for each rounding.
    cache = QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)
    roundings = list(others) if rounding is None else [(rounding, ["Linear"]), *others]
    groups = {
        f"group_{number}": one.scheme.model_copy(update={"format": one.format, "targets": names})
        for number, (one, names) in enumerate(roundings)
    }
    formats = {one.format for one, _ in roundings}

    # 2. The whole, as the library writes it.
    config = QuantizationConfig(
        config_groups=groups,
        format="mixed-precision" if len(formats) > 1 else min(formats, default="dense"),
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=ignored,
        kv_cache_scheme=cache if kv_cache else None,
    )
    document: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return document
