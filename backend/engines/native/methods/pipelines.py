"""The parts of a method's pipeline, and the statistics that the engine must collect for it.

A method is a row of domain/recipe/methods.py and an entry of `PIPELINES` in a module of this folder. Knows no model and
no text.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ImpossibleStack
from backend.domain.kernels.table import CPU_MULTIPLE
from backend.domain.recipe.methods import QUANTIZE, SIXTEEN_BIT, TUNED
from backend.domain.recipe.precision import SIXTEEN, Precision
from backend.engines.base import QuantizeRequest
from backend.engines.native.files import awq_format, schemes
from backend.engines.native.group import Learner, Pruner, Rounder, Scaler
from backend.engines.native.methods import pruning
from backend.engines.native.methods.rounding import Rounding, Write, compress
from backend.layered.kv_cache_range import Extent

if TYPE_CHECKING:
    import torch

TUNING = frozenset({*TUNED, "kv_cache", "format"})
"""The options of `QuantizeRequest.tuning`."""
Config = Callable[[list[str], Sequence[schemes.Other]], dict[str, Any] | None]
"""Makes `quantization_config` from the names that stay 16-bit and the modules rounded otherwise; None where nothing
need be said."""


@dataclass(frozen=True)
class Pipeline:
    """The algorithms of one method, and what they need of the engine."""

    rounder: Rounder
    config: Config
    rounding: Rounding | None = None
    """None where weights stay 16-bit."""
    pruner: Pruner | None = None
    scaler: Scaler | None = None
    learner: Learner | None = None
    """Rounds the linears of a layer together, in place of `rounder`."""
    loss_weights: bool = False
    """True if tokens count for X'X by how much an error there changes the model's answers (`native/loss_weights`)."""
    gram: bool = True
    magnitudes: bool = True
    """True if anything asks for the mean or largest |x| of a channel."""
    sequential: bool = False
    """True if each layer sees what the optimized layers before it compute, at the price of a second pass; else each
    sees what the original computes."""
    multiple: int = CPU_MULTIPLE
    """Number that must divide all sizes of a group of linears; others stay 16-bit, so that a processor can serve the
    rest."""
    reads_text: bool = True
    """True if calibration decides anything. Otherwise no text is drawn or run, and reported errors are those of the
    weights."""
    samples: int | None = None
    """The most sequences that are of use."""
    gram_tokens: int | None = None
    """Tokens of which X'X or X is collected if it serves the reported errors only."""
    cache: Callable[[Extent], dict[str, torch.Tensor]] | None = None
    """Makes the tensors stored with a layer's attention (`k_scale`, `v_scale`) from its largest key and value."""


def build(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """Make the pipeline of `request`; `dtype` is the 16-bit type that weights and scales are stored in.

    Raises ImpossibleStack for a method or an option that is unknown.
    """
    # 1. The method's own pipeline.
    methods = makers()
    if request.method not in methods or request.tuning.keys() - TUNING:
        names = ", ".join(method for method in QUANTIZE if method in methods)
        raise ImpossibleStack(f"The native engine cannot do {request.method!r} with {request.tuning}: it has {names}.")
    pipeline = methods[request.method](request, dtype)

    # 2. What the request adds: weights of tokens, scales of the cache, zeros that stay, or pruning.
    if request.tuning.get("loss_weights"):
        pipeline = replace(pipeline, loss_weights=True)
    if scales_cache(request):
        pipeline = replace(pipeline, cache=Extent.scales, samples=None)
    if request.keep_zeros:
        return replace(pipeline, pruner=pruning.ZerosHeld(), sequential=True, samples=None)
    if request.pruning is None:
        return pipeline
    return replace(
        pipeline, pruner=pruning.WeightPruner(request.pruning), sequential=True, samples=None, gram_tokens=None
    )


def pipeline_at(request: QuantizeRequest, precision: Precision, dtype: torch.dtype) -> Pipeline:
    """Make the pipeline of `request` at another precision, or at its own."""
    own = {"method": precision.method, "bits": precision.bits, "group_size": precision.group_size}
    tuning = request.tuning
    if precision.method != request.method:  # how activations are rounded belongs to the method
        tuning = {name: value for name, value in tuning.items() if name != "activations"}
    return build(request.model_copy(update={**own, "symmetric": precision.symmetric, "tuning": tuning}), dtype)


def outside_precision(request: QuantizeRequest) -> Precision | None:
    """Return the precision of linears outside of experts; None where it is the request's own."""
    method = request.outside_experts
    if method is None:
        return None
    return SIXTEEN if method == SIXTEEN_BIT else Precision(method=method, bits=QUANTIZE[method].bits[0])


def scales_cache(request: QuantizeRequest) -> bool:
    """Return whether the key-value cache gets scales."""
    return request.method == "kv_cache" or bool(request.tuning.get("kv_cache"))


class Form(NamedTuple):
    """The form of quantized weights: how they are rounded, written and described in config.json."""

    rounding: Rounding
    write: Write
    config: Config


def grouped(request: QuantizeRequest, dtype: torch.dtype) -> Form:
    """Return the form of integers in groups: the request's bits, group size and file format."""
    rounding = schemes.weight_only(
        request.bits,
        request.group_size,
        symmetric=request.symmetric,
        dtype=dtype,
        reordered=bool(request.tuning.get("act_order")),
    )
    if request.tuning.get("format") == "autoawq":
        write, config = partial(awq_format.compress, dtype=dtype), partial(awq_format.quantization_config, rounding)
        return Form(rounding, write, lambda ignored, _others: config(ignored))
    return ungrouped(request, rounding)


def ungrouped(request: QuantizeRequest, rounding: Rounding) -> Form:
    """Return the form of any rounding, stored as compressed-tensors has it."""
    config = partial(schemes.quantization_config, rounding, kv_cache=scales_cache(request))
    return Form(
        rounding,
        write=lambda values, grid: compress(values, rounding, grid),
        config=lambda ignored, others: config(ignored, others=others),
    )


@cache
def makers() -> dict[str | None, Callable[[QuantizeRequest, torch.dtype], Pipeline]]:
    """Map each method to the function that makes its pipeline: `PIPELINES` of every module in this folder that has
    one."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    makers_by_method: dict[str | None, Callable[[QuantizeRequest, torch.dtype], Pipeline]] = {}
    for module in modules:
        makers_by_method |= getattr(module, "PIPELINES", {})
    return makers_by_method
