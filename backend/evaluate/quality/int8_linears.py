"""Computes linears with 8-bit weights and 8-bit inputs as servers do: exact integer products, then scales.

Sums are 32-bit integers, followed by one scale per output and token. The result equals the product of the dequantized
matrices except for rounding in fp32, and takes a third of the time on a processor with 8-bit instructions. Knows one
checkpoint, and nothing of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.layered.dequantize import CompressedTensorsSource
from backend.layered.matrix_products import has_int8
from backend.layered.rounded_inputs import dynamic_scale

if TYPE_CHECKING:
    import torch

Named = tuple[str, Any]
"""Name of a module in the checkpoint, and the module."""


class Int8Weight(NamedTuple):
    """A stored weight: int8 [outputs, inputs], and the scale of its rows, fp32 [outputs] or [1]."""

    numbers: torch.Tensor
    scale: torch.Tensor


@contextmanager
def int8_products(source: CompressedTensorsSource, modules: Iterable[Named], device: str) -> Iterator[list[Named]]:
    """Compute those linears in integers that can be, until the block ends; yield the others."""
    round_inputs, others, changed = _InputRounder(), list[Named](), list[Any]()
    try:
        # Replace the forward of each linear that can be computed in integers.
        for name, module in modules:
            weight = _weight(source, name) if has_int8(device) else None
            if weight is None:
                others.append((name, module))
                continue
            args, static = source.scheme(name).input_activations, source.scale(f"{name}.input_scale")
            module.forward = _forward(module, weight, partial(round_inputs, args=args, static=static))
            changed.append(module)
        # Lend the others to the caller, then restore the forwards.
        yield others
    finally:
        for module in changed:
            del module.forward


def _weight(source: CompressedTensorsSource, name: str) -> Int8Weight | None:
    """Return the weight; None if it, or its inputs, are not symmetric 8-bit integers."""
    import torch

    # Weights and inputs must be symmetric 8-bit integers.
    scheme = source.scheme(name)
    if scheme is None or scheme.input_activations is None or source.transposed:
        return None
    sides = (scheme.weights, scheme.input_activations)
    if any(side.num_bits != 8 or side.type != "int" or not side.symmetric for side in sides):
        return None
    if scheme.weights.strategy not in {"channel", "tensor"} or scheme.input_activations.strategy not in {
        "token",
        "tensor",
    }:
        return None
    # The stored weight must be int8 too.
    tensors = source.stored(f"{name}.weight")
    numbers = tensors[f"{name}.weight"]
    if numbers.dtype != torch.int8:
        return None
    return Int8Weight(numbers, tensors[f"{name}.weight_scale"].float().flatten())


def _forward(
    module: Any, weight: Int8Weight, round_inputs: Callable[[torch.Tensor], Any]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a `forward` that computes in integers; `round_inputs` returns integer inputs with their scale."""
    import torch

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        numbers, scale = round_inputs(inputs)
        sums = torch._int_mm(numbers.flatten(0, -2), weight.numbers.T)
        outputs = sums.to(inputs.dtype).mul_(weight.scale).view(*inputs.shape[:-1], -1).mul_(scale)
        return outputs if module.bias is None else outputs.add_(module.bias)

    return forward


class _InputRounder:
    """Rounds inputs, only once if several linears read the same one after the other.

    Threads may share it, since it remembers only one value.
    """

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, Any, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __call__(
        self, inputs: torch.Tensor, args: Any, static: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `inputs` as int8, and the scale that restores what a server reads: one per token, or one."""
        import torch
        from compressed_tensors.quantization.lifecycle.forward import quantize

        last = self._last
        if static is None and last is not None and last[0] is inputs and last[1] == args:
            return last[2]
        scale = dynamic_scale(inputs, args)[0] if static is None else static
        numbers = quantize(inputs, scale, None, args, dtype=torch.int8), scale
        self._last = inputs, args, numbers
        return numbers
