"""Which algorithms a method is made of, one row a method, and what the engine must collect for them.

Knows the algorithms by name and nothing of models, files or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.domain.recipe.precision import Precision
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native.files import autoawq, schemes
from backend.engines.native.group import Linear, Producer, Pruner, Rounder, Scaler
from backend.engines.native.methods import activations, pruning, smoothquant, sparsegpt
from backend.engines.native.methods.rounders import Kept, Nearest, Swept, Write
from backend.engines.native.methods.rounding import Rounding, compress
from backend.engines.native.search.scales import search
from backend.layered.cache import Extent

if TYPE_CHECKING:
    import torch

KERNEL_MULTIPLE = 32
"""vLLM's CPU kernels take features in multiples of this; other linears stay 16-bit."""
TUNING = frozenset({"act_order", "awq_scales", "clip", "activations", "strength", "kv_cache", "format"})
"""The options of `QuantizeRequest.tuning`."""
REPORT_SAMPLES, REPORT_TOKENS = 8, 512
"""Sequences that run, and tokens spread over all that do, where nothing but the reported errors is made of X'X."""


Config = Callable[[list[str], Sequence[schemes.Other]], dict[str, Any] | None]
"""From the names that stay 16-bit and the modules rounded otherwise to `quantization_config`; None where nothing need be said."""


@dataclass(frozen=True)
class Pipeline:
    """`sequential`: each layer sees what the optimized layers before it compute, at the price of a second pass; else each
    layer sees what the original computes."""

    rounder: Rounder
    config: Config
    rounding: Rounding | None = None
    """None where weights stay 16-bit."""
    pruner: Pruner | None = None
    scaler: Scaler | None = None
    gram: bool = True
    magnitudes: bool = True
    """Whether anything asks for the mean or largest |x| of a channel."""
    sequential: bool = False
    multiple: int = KERNEL_MULTIPLE
    samples: int | None = None
    """The most sequences that are of use."""
    gram_tokens: int | None = None
    """Of how many tokens X'X or X is kept, where it serves the reported errors only."""
    cache: Callable[[Extent], dict[str, torch.Tensor]] | None = None
    """From the largest key and value of a layer to what is stored with its attention (`k_scale`, `v_scale`)."""


class Searched:
    """AWQ's scales."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding

    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        return search(linears, producer, self.rounding)


class Smoothed:
    """SmoothQuant's scales."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def scales(self, linears: Sequence[Linear], producer: Producer) -> torch.Tensor:
        return smoothquant.scales(linears, producer, self.strength)


class Dropped:
    """Pruning by a mask, or by SparseGPT."""

    def __init__(self, asked: Pruning) -> None:
        self.asked = asked

    def prune(self, linear: Linear) -> torch.Tensor:
        weight, stats, asked = linear.weight, linear.stats, self.asked
        if asked.method == "sparsegpt":
            return sparsegpt.prune(weight, stats, asked.sparsity, asked.pattern)
        if asked.method == "wanda":
            return weight * pruning.by_wanda(weight, stats, asked.sparsity, asked.pattern)
        return weight * pruning.by_magnitude(weight, asked.sparsity, asked.pattern)


class Held:
    """Zeros that are there already: nothing more is dropped, and what rounds knows where they are."""

    def prune(self, linear: Linear) -> torch.Tensor:
        return linear.weight.clone()


def build(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """The algorithms of `request`; `dtype` is the 16-bit type that weights and scales are stored in.

    Raises ImpossibleStack for a method or an option that is unknown.
    """
    if request.method not in METHODS or request.tuning.keys() - TUNING:
        known = ", ".join(str(method) for method in METHODS if method)
        raise ImpossibleStack(f"The native engine cannot do {request.method!r} with {request.tuning}: it has {known}.")
    found = METHODS[request.method](request, dtype)
    if _caches(request):
        found = replace(found, cache=activations.cache_scales, samples=None)
    if request.keep_zeros:
        return replace(found, pruner=Held(), sequential=True, samples=None)
    if request.pruning is None:
        return found
    return replace(found, pruner=Dropped(request.pruning), sequential=True, samples=None, gram_tokens=None)


def variant(request: QuantizeRequest, precision: Precision, dtype: torch.dtype) -> Pipeline:
    """The algorithms of `request` at another precision, or at its own."""
    own = {"method": precision.method, "bits": precision.bits, "group_size": precision.group_size}
    return build(request.model_copy(update={**own, "symmetric": precision.symmetric}), dtype)


def _caches(request: QuantizeRequest) -> bool:
    return request.method == "kv_cache" or bool(request.tuning.get("kv_cache"))


def _kept(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    def config(ignored: list[str], others: Sequence[schemes.Other]) -> dict[str, Any] | None:
        cached = _caches(request)
        return schemes.quantization_config(None, ignored, kv_cache=cached, others=others) if cached or others else None

    return Pipeline(Kept(dtype), config, multiple=8)


def _rtn(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    rounding, write, config = _grouped(request, dtype)
    return Pipeline(Nearest(rounding, write, compared=True, clipped=bool(request.tuning.get("clip"))), config, rounding)


def _awq(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return replace(_rtn(request, dtype), scaler=Searched(_grouped(request, dtype)[0]))


def _gptq(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    rounding, write, config = _grouped(request, dtype)
    act_order, clipped = bool(request.tuning.get("act_order")), bool(request.tuning.get("clip"))
    scaler = Searched(rounding) if request.tuning.get("awq_scales") else None
    swept = Swept(rounding, write, act_order=act_order, clipped=clipped)
    return Pipeline(swept, config, rounding, scaler=scaler, magnitudes=scaler is not None)


def _w8a8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return _eight(request, schemes.int8(request.tuning.get("activations", "dynamic")))


def _smoothquant(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    strength = float(request.tuning.get("strength", smoothquant.STRENGTH))
    return replace(_w8a8(request, dtype), scaler=Smoothed(strength), samples=None)


def _fp8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return _eight(request, schemes.fp8(request.tuning.get("activations", "dynamic")))


def _int8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return _eight(request, schemes.weight_only(8, None, symmetric=True, dtype=dtype))


def _eight(request: QuantizeRequest, rounding: Rounding) -> Pipeline:
    inputs = rounding.scheme.input_activations
    static = inputs is not None and not inputs.dynamic
    samples = None if static else REPORT_SAMPLES
    return Pipeline(
        Nearest(rounding, _plain(rounding)),
        _config(request, rounding),
        rounding,
        samples=samples,
        gram_tokens=REPORT_TOKENS,
    )


def _grouped(request: QuantizeRequest, dtype: torch.dtype) -> tuple[Rounding, Write, Any]:
    """Integers in groups: how they are rounded, written and described."""
    reordered = bool(request.tuning.get("act_order"))
    rounding = schemes.weight_only(
        request.bits, request.group_size, symmetric=request.symmetric, dtype=dtype, reordered=reordered
    )
    if request.tuning.get("format") == "autoawq":
        return (
            rounding,
            lambda values, grid: autoawq.compress(values, grid, dtype),
            lambda ignored, _others: autoawq.quantization_config(rounding, ignored),
        )
    return rounding, _plain(rounding), _config(request, rounding)


def _plain(rounding: Rounding) -> Write:
    return lambda values, grid: compress(values, rounding, grid)


def _config(request: QuantizeRequest, rounding: Rounding) -> Config:
    return lambda ignored, others: schemes.quantization_config(rounding, ignored, kv_cache=_caches(request), others=others)


METHODS: dict[str | None, Callable[[QuantizeRequest, torch.dtype], Pipeline]] = {
    None: _kept,
    "kv_cache": _kept,
    "rtn": _rtn,
    "awq": _awq,
    "gptq": _gptq,
    "w8a8": _w8a8,
    "smoothquant": _smoothquant,
    "int8": _int8,
    "fp8": _fp8,
}
