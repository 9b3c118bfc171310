"""Writes quantized weights of an artifact as blocks of 32 of a GGUF file, number by number: nothing is rounded anew.

A block has one scale d in 16-bit float (ggml-common.h): Q8_0 holds 8-bit numbers q, a weight is q d; Q4_0 4-bit
numbers, a weight is (q - 8) d; Q4_1 has a minimum m besides, a weight is q d + m. Groups of multiples of 32 fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ImpossibleStack
from backend.domain.model.gguf.conversion import CarriedTensor
from backend.engines.gguf import writer
from backend.engines.gguf.writer import Source, TensorForm

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array = np.ndarray[Any, Any]

BLOCK = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
ROUNDED, STEP = 2.0**-10, 0.02
"""Largest difference from ours: of a weight, relative, since scales become 16-bit floats; and of a step of its group,
since minimums do."""
LEAST = 2.0**-20
"""A difference that no group's scale makes large: 16-bit floats end there."""


class QuantizedMatrix(NamedTuple):
    """`weights` [out, in] and the `scales` of their blocks [out, in / 32], both 32-bit floats, in llama.cpp's order."""

    weights: torch.Tensor
    scales: torch.Tensor


def form(source: Source, tensor: CarriedTensor) -> TensorForm:
    """Return the form of a tensor in the file: blocks of a quantized matrix, anything else as it is stored.

    Raises ImpossibleStack for quantized weights without a type of GGUF.
    """
    if tensor.becomes[0] not in getattr(source.weights, "parts", {}):
        return writer.plain_form(source, tensor)
    kind = block_kind(read_matrix(source, tensor))
    rows, width = tensor.shape
    size = rows * (width // BLOCK) * BLOCK_BYTES[kind]
    return TensorForm(kind, size, lambda: pack(read_matrix(source, tensor), kind))


def read_matrix(source: Source, tensor: CarriedTensor) -> QuantizedMatrix:
    """Read a quantized matrix with the scale of each block. Raises ImpossibleStack where blocks have none."""
    import torch

    # 1. The scales as they are stored: [out, groups], one of all, or of AutoAWQ [groups, out].
    name = tensor.becomes[0]
    weights: Any = source.weights
    parts = {part.rpartition(".")[2]: stored for part, stored in weights.stored(name).items()}
    if "weight_scale" in parts:
        scales = parts["weight_scale"].float()
    elif "scales" in parts and "qzeros" in parts:
        scales = parts["scales"].float().T.contiguous()
    else:
        raise ImpossibleStack(f"{name} is stored as {', '.join(sorted(parts))}, which GGUF has no type for.")
    stored = parts.get("weight")
    if stored is not None and stored.is_floating_point():
        raise ImpossibleStack("FP8 numbers have no type in GGUF.")

    # 2. One for each block of 32 weights.
    rows, width = tensor.shape
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.reshape(rows, -1)
    scales = scales.expand(rows, -1)
    group = width // scales.shape[1]
    if width % BLOCK or group % BLOCK:
        raise ImpossibleStack(f"Groups of {group} weights do not fill blocks of {BLOCK}.")
    index = parts.get("weight_g_idx")
    if index is not None and not torch.equal(index.long().clamp(min=0), torch.arange(width) // group):
        raise ImpossibleStack("Its groups are not side by side (`act_order`), and GGUF's are.")
    spread = scales.repeat_interleave(group // BLOCK, 1)
    return QuantizedMatrix(writer.read_tensor(source, tensor).float(), writer.turned(spread, tensor))


def block_kind(matrix: QuantizedMatrix) -> str:
    """Return the type that holds every number: 4 bits around zero, 4 bits with a minimum, or 8 bits.

    Raises ImpossibleStack if none does.
    """
    numbers = _numbers(matrix)
    least, most = numbers.amin(-1), numbers.amax(-1)
    if int(least.min()) >= -8 and int(most.max()) <= 7:
        return "Q4_0"
    if int((most - least).max()) <= 15:
        return "Q4_1"
    if int(least.min()) >= -128 and int(most.max()) <= 127:
        return "Q8_0"
    raise ImpossibleStack("Its numbers have more than 8 bits.")


def pack(matrix: QuantizedMatrix, kind: str) -> Array:
    """Return the blocks of a matrix as bytes [out, bytes of a row]."""
    import numpy as np
    import torch

    # 1. The numbers and the 16-bit floats of each block.
    numbers, scales = _numbers(matrix), matrix.scales
    blocks, floats = numbers.shape[:2], [scales]
    if kind == "Q4_1":
        least = numbers.amin(-1)
        floats.append(least * scales)
        numbers = numbers - least[..., None]
    head = torch.stack(floats, -1).to(torch.float16).numpy().view(np.uint8).reshape(*blocks, -1)

    # 2. Numbers of 4 bits lie in pairs, the first half of a block in the lower bits.
    if kind == "Q8_0":
        body = numbers.to(torch.int8).numpy().view(np.uint8)
    else:
        nibbles = (numbers + (8 if kind == "Q4_0" else 0)).to(torch.uint8).numpy()
        body = nibbles[..., : BLOCK // 2] | (nibbles[..., BLOCK // 2 :] << 4)
    packed: Array = np.concatenate([head, body], -1).reshape(blocks[0], -1)
    return packed


def difference(expected: QuantizedMatrix, stored: Array) -> float:
    """Return the largest difference of dequantized weights from ours, as a share of what is allowed; at most 1 is
    rounding of scales alone."""
    import torch

    steps = expected.scales.abs().repeat_interleave(BLOCK, 1)
    allowed = ROUNDED * expected.weights.abs() + STEP * steps + LEAST
    return float(((torch.from_numpy(stored) - expected.weights).abs() / allowed).max())


def _numbers(matrix: QuantizedMatrix) -> torch.Tensor:
    """Return the whole numbers [out, blocks, 32] that weights are multiples of their scale by."""
    import torch

    blocks = matrix.weights.reshape(len(matrix.weights), -1, BLOCK)
    scales = matrix.scales[..., None]
    return torch.where(scales == 0, torch.zeros_like(blocks), blocks / scales).round().to(torch.int32)
