"""Rounds weights to integers and writes them in compressed-tensors form, by that library's own arithmetic and packing.

Knows one weight matrix at a time; nothing of models, calibration or scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backend.engines.base import QuantizeRequest

if TYPE_CHECKING:
    import torch


class Rounding(NamedTuple):
    """How one method rounds: a compressed-tensors scheme and format, and the dtype its scales are stored in."""

    scheme: Any
    format: str
    scale_dtype: torch.dtype


def rounding_for(request: QuantizeRequest, dtype: torch.dtype) -> Rounding:
    """w8a8: INT8 symmetric per output channel, activations INT8 dynamic per token. awq: integers in groups along the input."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if request.method == "w8a8":
        weights = QuantizationArgs(num_bits=8, symmetric=True, strategy="channel")
        inputs = QuantizationArgs(num_bits=8, symmetric=True, strategy="token", dynamic=True)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
        return Rounding(scheme, "int-quantized", torch.float32)
    weights = QuantizationArgs(
        num_bits=request.bits, symmetric=request.symmetric, strategy="group", group_size=request.group_size
    )
    return Rounding(QuantizationScheme(targets=["Linear"], weights=weights), "pack-quantized", dtype)


def parameters(weight: torch.Tensor, rounding: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point [out, groups] of `weight` [out, in]: the full range of each group.

    The scale is rounded to the dtype it will be stored in before it is used, so that what is scored is what is saved.
    """
    import torch
    from compressed_tensors.quantization.utils import calculate_qparams

    args = rounding.scheme.weights
    grouped = in_groups(weight, rounding)
    low, high = grouped.aminmax(dim=-1)
    smallest = torch.finfo(rounding.scale_dtype).smallest_normal * 2**args.num_bits
    high = torch.where(high - low < smallest, low + smallest, high)
    scale, zero_point = calculate_qparams(low, high, args)
    return scale.to(rounding.scale_dtype).float(), zero_point


def in_groups(weight: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """`weight` [out, in] as [out, groups, group size]: the weights that share a scale."""
    return weight.view(len(weight), -1, rounding.scheme.weights.group_size or weight.shape[1])


def rounded(weight: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """`weight` [out, in] as it will read after quantization and dequantization."""
    import torch
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    scale, zero_point = parameters(weight, rounding)
    result = fake_quantize(weight, scale, zero_point, rounding.scheme.weights)
    assert isinstance(result, torch.Tensor)
    return result


def compress(weight: torch.Tensor, rounding: Rounding) -> dict[str, torch.Tensor]:
    """The stored tensors of one linear by local name (`weight` or `weight_packed`, `weight_scale`...)."""
    from compressed_tensors.compressors import BaseCompressor

    scale, zero_point = parameters(weight, rounding)
    compressor = BaseCompressor.get_value_from_registry(rounding.format)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    tensors: dict[str, torch.Tensor] = compressor.compress(state, rounding.scheme)
    tensors["weight_scale"] = tensors["weight_scale"].to(rounding.scale_dtype)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def quantization_config(rounding: Rounding, ignored: list[str]) -> dict[str, Any]:
    """The `quantization_config` of config.json."""
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    config = QuantizationConfig(
        config_groups={"group_0": rounding.scheme.model_copy(update={"format": rounding.format})},
        format=rounding.format,
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=ignored,
    )
    document: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return document
