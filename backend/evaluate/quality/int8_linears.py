"""Linears of 8-bit weights that read 8-bit inputs, as servers compute them: products of integers in sums of 32 bits,
which are exact, then one scale an output and a token.

The same numbers as the product of the dequantized matrices but for that one's rounding in fp32, in a third of its time
where the processor multiplies 8-bit integers itself. Knows one checkpoint, and nothing of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.layered.dequantize import Dequantized
from backend.layered.matrix_products import dynamic_scale, has_int8

if TYPE_CHECKING:
    import torch

Named = tuple[str, Any]
"""A module by its name in the checkpoint."""


class Int8Weight(NamedTuple):
    """As it is stored: int8 [outputs, inputs], and what its rows are scaled by, fp32 [outputs] or [1]."""

    numbers: torch.Tensor
    scale: torch.Tensor


@contextmanager
def int8_products(source: Dequantized, modules: Iterable[Named], device: str) -> Iterator[list[Named]]:
    """While this lasts those of the linears that can be are computed in integers; gives the others."""
    rounded, rest, changed = _Rounded(), list[Named](), list[Any]()
    try:
        for name, module in modules:
            weight = _weight(source, name) if has_int8(device) else None
            if weight is None:
                rest.append((name, module))
                continue
            args, static = source.scheme(name).input_activations, source.scale(f"{name}.input_scale")
            module.forward = _forward(module, weight, partial(rounded, args=args, static=static))
            changed.append(module)
        yield rest
    finally:
        for module in changed:
            del module.forward


def _weight(source: Dequantized, name: str) -> Int8Weight | None:
    """None where the weight or what reads it is stored in another form."""
    import torch

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
    held = source.stored(f"{name}.weight")
    numbers = held[f"{name}.weight"]
    return Int8Weight(numbers, held[f"{name}.weight_scale"].float().flatten()) if numbers.dtype == torch.int8 else None


def _forward(
    module: Any, weight: Int8Weight, rounded: Callable[[torch.Tensor], Any]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the linear answers; `rounded` gives its inputs as integers, with their scale."""
    import torch

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        numbers, scale = rounded(inputs)
        sums = torch._int_mm(numbers.flatten(0, -2), weight.numbers.T)
        outputs = sums.to(inputs.dtype).mul_(weight.scale).view(*inputs.shape[:-1], -1).mul_(scale)
        return outputs if module.bias is None else outputs.add_(module.bias)

    return forward


class _Rounded:
    """Rounds inputs; what several linears read, one after the other, once. Threads may share it: what is kept is one
    value."""

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, Any, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __call__(
        self, inputs: torch.Tensor, args: Any, static: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int8 of the shape of `inputs`, and the scale by which they are what a server reads: one a token, or one."""
        import torch
        from compressed_tensors.quantization.lifecycle.forward import quantize

        last = self._last
        if static is None and last is not None and last[0] is inputs and last[1] == args:
            return last[2]
        scale = dynamic_scale(inputs, args)[0] if static is None else static
        numbers = quantize(inputs, scale, None, args, dtype=torch.int8), scale
        self._last = inputs, args, numbers
        return numbers
