"""The precisions that groups of linears may get in one checkpoint: their cost in bits, and the loss measured at each.

A group is what serving engines fuse or what shares an input: all its linears get one precision. Pure; knows no model
and no arithmetic of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from backend.domain.frozen import Frozen
from backend.domain.model.shapes import GROUP_SIZES

FINER = GROUP_SIZES[-1]
"""Group size of the candidate between 4 bits in larger groups and 8 bits."""
WEIGHT_SCALE, ACTIVE_SCALE = 16, 32
"""Bits of a scale: of weight-only formats in the model's 16-bit type, of those with 8-bit activations in fp32."""

EightBitForm = Literal["int8", "w8a8"]
"""The 8-bit form used next to 4 bits: weights only, which GPUs serve, or activations too, which a processor serves as
well."""


def packed_bits(bits: int) -> float:
    """Return the bits that a value of `bits` takes in words of 32, which hold whole values: 3.2 of 3 bits."""
    return 32 / (32 // bits)


class Precision(Frozen):
    """One way to store linears.

    `method` makes it (None keeps 16 bits); `group_size` weights share a scale, None where an output channel has one.
    """

    method: str | None
    bits: int
    group_size: int | None = None
    symmetric: bool = True

    @property
    def name(self) -> str:
        """A short name, unique among the candidates of a job."""
        if self.method is None:
            return "16-bit"
        if self.group_size:
            return f"int{self.bits}-g{self.group_size}"
        return self.method

    @property
    def words(self) -> str:
        if self.group_size:
            return f"{self.bits} bits in groups of {self.group_size}"
        return {"w8a8": "8 bits with 8-bit activations", "int8": "8 bits, weights only"}.get(
            self.name, f"{self.bits} bits"
        )

    def stored_bits(self, outputs: int, inputs: int) -> int:
        """Return the bits of a matrix [outputs, inputs] with its scales and zero points, as compressed-tensors stores
        them.
        """
        weights = math.ceil(outputs * inputs * packed_bits(self.bits))
        if self.method is None:
            return weights
        if self.group_size:
            return weights + math.ceil(outputs * -(-inputs // self.group_size) * (WEIGHT_SCALE + self._zero_point))
        return weights + outputs * (WEIGHT_SCALE if self.method in {"int8", "gptq"} else ACTIVE_SCALE)

    @property
    def least_average(self) -> float:
        """Bits per weight without scales of output channels: the lowest average, whatever the matrix."""
        if not self.group_size or self.method is None:
            return float(self.bits)
        return packed_bits(self.bits) + (WEIGHT_SCALE + self._zero_point) / self.group_size

    @property
    def _zero_point(self) -> float:
        """Bits of the zero point of a group."""
        return 0.0 if self.symmetric else packed_bits(self.bits)


SIXTEEN = Precision(method=None, bits=16)


class MeasuredGroup(Frozen):
    """A group of linears: names, shapes [outputs, inputs], and the loss at each precision by its name.

    `losses` are nats per token: the mean KL divergence from the original when only this group is rounded.
    """

    name: str
    linears: list[str]
    shapes: list[tuple[int, int]]
    losses: dict[str, float]

    @property
    def weights(self) -> int:
        return sum(outputs * inputs for outputs, inputs in self.shapes)

    def stored_bits(self, precision: Precision) -> int:
        return sum(precision.stored_bits(*shape) for shape in self.shapes)


def step_precision(options: Mapping[str, Any]) -> Precision:
    """Return the precision that a planned quantize step gives to every linear by itself."""
    return Precision(
        method=options["method"],
        bits=options["bits"],
        group_size=options.get("group_size"),
        symmetric=options["symmetric"],
    )


def candidates(options: Mapping[str, Any], eight: EightBitForm) -> tuple[Precision, ...]:
    """Return the precisions that a group may get, cheapest first: the step's own, smaller groups, 8 bits, 16 bits.

    vLLM 0.32.0 reads each from a config group of its own (compressed_tensors.py, get_scheme_dict) and needs one for all
    linears that it fuses.
    """
    mine = step_precision(options)
    precisions = [mine]
    if mine.bits < 8:
        if (mine.group_size or FINER) > FINER:
            precisions.append(mine.model_copy(update={"group_size": FINER}))
        precisions.append(Precision(method=eight, bits=8))
    return (*precisions, SIXTEEN)


def average_bits(groups: Sequence[MeasuredGroup], chosen: Sequence[Precision]) -> float:
    """Return the bits per weight over all groups, scales and zero points counted."""
    total = sum(group.stored_bits(precision) for group, precision in zip(groups, chosen, strict=True))
    return total / sum(group.weights for group in groups)
