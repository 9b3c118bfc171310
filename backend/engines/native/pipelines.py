"""Which algorithms a method is made of, one row a method, and what the engine must collect for them.

Knows the algorithms by name and nothing of models, files or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.engines.base import QuantizeRequest
from backend.engines.native.cache import Extent
from backend.engines.native.group import Linear, Producer, Pruner, Rounder, Scaler, Stored
from backend.engines.native.rounding import Rounding, compress, quantization_config, rounded, rounding_for
from backend.engines.native.scales import search

if TYPE_CHECKING:
    import torch

KERNEL_MULTIPLE = 32
"""vLLM's CPU kernels take features in multiples of this; other linears stay 16-bit."""
REPORT_SAMPLES = 16
"""Sequences of methods that take nothing from calibration but the reported errors."""


@dataclass(frozen=True)
class Pipeline:
    """`sequential`: each layer sees what the optimized layers before it compute, at the price of a second pass; else each
    layer sees what the original computes."""

    rounder: Rounder
    config: Callable[[list[str]], dict[str, Any] | None]
    """From the names that stay 16-bit to `quantization_config`."""
    pruner: Pruner | None = None
    scaler: Scaler | None = None
    cache: Callable[[Extent], dict[str, torch.Tensor]] | None = None
    """From the largest key and value of a layer to what is stored with its attention (`k_scale`, `v_scale`)."""
    gram: bool = True
    sequential: bool = False
    multiple: int = KERNEL_MULTIPLE
    samples: int | None = None
    """The most sequences that are of use."""


class Nearest:
    """Rounding to nearest. With `compared`, says too what the error would be without scales."""

    def __init__(self, rounding: Rounding, compared: bool) -> None:
        self.rounding, self.compared = rounding, compared

    def store(self, linear: Linear) -> Stored:
        weight = linear.stored()
        effective = linear.undone(rounded(weight, self.rounding))
        report = {"relative_error": linear.relative_error(effective)}
        if self.compared:
            report["rtn_relative_error"] = linear.relative_error(rounded(linear.weight, self.rounding))
        return Stored(compress(weight, self.rounding), effective, report)


class Searched:
    """AWQ's scales."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding

    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        return search(linears, producer, self.rounding)


def build(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """The algorithms of `request.method`; `dtype` is the 16-bit type that weights and scales are stored in."""
    if request.method not in METHODS:
        raise ImpossibleStack(f"The native engine has no method {request.method!r}: it has {', '.join(METHODS)}.")
    return METHODS[request.method](request, dtype)


def _w8a8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    rounding = rounding_for(request, dtype)
    return Pipeline(Nearest(rounding, False), lambda kept: quantization_config(rounding, kept), samples=REPORT_SAMPLES)


def _awq(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    rounding = rounding_for(request, dtype)
    return Pipeline(Nearest(rounding, True), lambda kept: quantization_config(rounding, kept), scaler=Searched(rounding))


def _rtn(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    rounding = rounding_for(request, dtype)
    return Pipeline(Nearest(rounding, True), lambda kept: quantization_config(rounding, kept))


METHODS: dict[str, Callable[[QuantizeRequest, torch.dtype], Pipeline]] = {"w8a8": _w8a8, "awq": _awq, "rtn": _rtn}
