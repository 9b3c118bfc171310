"""Rounding to nearest, and weights kept as they are; the methods made of no more than that.

Linears of one call share an input and are fused by serving engines, so they share what must be one: a matrix's FP8
scale, the scale of a static input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from backend.domain.needs.job_duration import REPORT_SAMPLES, REPORT_TOKENS
from backend.domain.recipe.methods import QUANTIZE
from backend.engines.base import QuantizeRequest
from backend.engines.native.files import schemes
from backend.engines.native.group import Linear, Stored
from backend.engines.native.methods import clip_search
from backend.engines.native.methods.pipelines import Pipeline, grouped, scales_cache, ungrouped
from backend.engines.native.methods.rounding import (
    Grid,
    Rounding,
    Snapped,
    Write,
    parameters,
    rounded,
    snapped,
    whole_scale,
)

if TYPE_CHECKING:
    import torch


class SixteenBit:
    """Keeps weights in 16 bits: as they were, or pruned."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        return [self._stored(linear) for linear in linears]

    def _stored(self, linear: Linear) -> Stored:
        weight = linear.stored().to(self.dtype)
        effective = linear.undone(weight.float())
        return Stored({"weight": weight}, effective, _report(linear, effective))


class Nearest:
    """Rounds to nearest, over the full range or over searched ranges (`clipped`).

    `compared`: the report also says what the error would be with neither scales nor searched ranges.
    """

    every = 1
    """`clip_search.search_ranges`: all steps, as nothing makes up for a range chosen badly."""

    def __init__(self, rounding: Rounding, write: Write, *, compared: bool = False, clipped: bool = False) -> None:
        self.rounding, self.write, self.compared, self.clipped = rounding, write, compared, clipped

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        on_grid = self.snap([linear.stored() for linear in linears], linears)
        return [
            self._stored(linear, weight, _input_scale(linears, self.rounding))
            for linear, weight in zip(linears, on_grid, strict=True)
        ]

    def snap(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[Snapped]:
        """Round each stored weight [out, in]."""
        if not self.clipped:
            grids = self._grids(weights)
            return [
                Snapped(snapped(weight, grid, self.rounding), grid) for weight, grid in zip(weights, grids, strict=True)
            ]
        return parted(self._searched(weights, linears), [len(weight) for weight in weights])

    def _searched(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> Snapped:
        """Search the ranges of weights that share an input, stacked one under the other.

        A search of scales has left what their rows lose when they are rounded to nearest.
        """
        import torch

        known = [linear.scaled / linear.rows.square() for linear in linears if linear.scaled is not None]
        plain = torch.cat(known) if len(known) == len(linears) else None
        return clip_search.search_ranges(
            torch.cat(list(weights)), linears[0].folded_stats(), self.rounding, plain, every=self.every
        )

    def _grids(self, weights: Sequence[torch.Tensor]) -> list[Grid]:
        import torch

        if self.rounding.scheme.weights.strategy == "tensor":
            grid = parameters(torch.cat([weight.flatten() for weight in weights])[None], self.rounding)
            return [Grid(grid.scale.clone(), grid.zero_point.clone()) for _ in weights]
        shared = None
        if self.rounding.scheme.weights.strategy == "tensor_group":
            shared = whole_scale(
                torch.stack([weight.amin() for weight in weights]), torch.stack([weight.amax() for weight in weights])
            )
        return [parameters(weight, self.rounding, global_scale=shared) for weight in weights]

    def _stored(self, linear: Linear, snapped: Snapped, input_scale: dict[str, torch.Tensor]) -> Stored:
        effective = linear.undone(snapped.values)
        report = _report(linear, effective, snapped.losses)
        if self.compared:
            report["rtn_relative_error"] = self._plain_error(linear, snapped)
        return Stored(self.write(snapped.values, snapped.grid) | input_scale, effective, report)

    def _plain_error(self, linear: Linear, snapped: Snapped) -> float:
        """Return the relative error of rounding to nearest, with neither scales nor searched ranges."""
        if linear.plain is None and snapped.plain is not None and not linear.pruned and linear.as_it_was:
            linear.plain = float(snapped.plain.sum())
        if linear.plain is None or linear.pruned:
            return linear.relative_error(rounded(linear.weight, self.rounding))
        return linear.relative(linear.plain)


def parted(snapped: Snapped, heights: Sequence[int]) -> list[Snapped]:
    """Take stacked rows of several weights apart again."""
    ends = list(accumulate(heights))
    return [_rows(snapped, slice(end - height, end)) for end, height in zip(ends, heights, strict=True)]


def _rows(snapped: Snapped, part: slice) -> Snapped:
    losses = None if snapped.losses is None else snapped.losses[part]
    plain = None if snapped.plain is None else snapped.plain[part]
    grid = snapped.grid._replace(scale=snapped.grid.scale[part], zero_point=snapped.grid.zero_point[part])
    return Snapped(snapped.values[part], grid, losses, plain)


def _report(linear: Linear, effective: torch.Tensor, losses: torch.Tensor | None = None) -> dict[str, Any]:
    """Return a linear's entry in the result; `losses` are those of the rows as stored, if they are known."""
    if linear.pruned:
        return {"relative_error": linear.relative_error(effective), "zeros": float((linear.weight == 0).float().mean())}
    known = None if losses is None else float((losses * linear.rows.square()).sum())
    return {"relative_error": linear.relative_error(effective) if known is None else linear.relative(known)}


def _input_scale(linears: Sequence[Linear], rounding: Rounding) -> dict[str, torch.Tensor]:
    """Make `input_scale` for static activations, or NVFP4's `input_global_scale`: one for all linears, 1 if no token
    was seen; else nothing."""
    import torch

    # 1. What every token scales for itself has nothing stored.
    inputs = rounding.scheme.input_activations
    if inputs is None or inputs.dynamic is True:
        return {}
    # 2. The largest input of the calibration text.
    most = torch.stack([linear.stats.max_abs / linear.columns for linear in linears]).amax(0)
    unseen = all(linear.stats.tokens == 0 for linear in linears)
    if inputs.dynamic == "local":
        one = torch.ones(1, device=most.device)
        return {"input_global_scale": one if unseen else whole_scale(-most, most)}
    return {"input_scale": torch.ones(1, device=most.device) if unseen else input_scale(most, rounding)}


def input_scale(max_abs: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """The scale [1] fp32 of an input whose channels reached `max_abs` [in], symmetric, one for the whole tensor."""
    from compressed_tensors.quantization.utils import calculate_qparams

    most = max_abs.amax().reshape(1)
    scale, _ = calculate_qparams(-most, most, rounding.scheme.input_activations)
    static: torch.Tensor = scale.float()
    return static


def sixteen_bit(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """Make a pipeline that keeps weights in 16 bits; the key-value cache may get scales."""
    cached = scales_cache(request)

    def config(ignored: list[str], others: Sequence[schemes.Other]) -> dict[str, Any] | None:
        return schemes.quantization_config(None, ignored, kv_cache=cached, others=others) if cached or others else None

    return Pipeline(SixteenBit(dtype), config, multiple=8)


def rtn(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    form = grouped(request, dtype)
    clipped = bool(request.tuning.get("clip"))
    rounder = Nearest(form.rounding, form.write, compared=True, clipped=clipped)
    reads = bool(clipped or request.pruning or request.keep_zeros or request.precisions or scales_cache(request))
    return Pipeline(rounder, form.config, form.rounding, gram=reads, reads_text=reads)


def w8a8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.int8(request.tuning.get("activations", "dynamic")))


def fp8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.fp8(request.tuning.get("activations", "dynamic")))


def fp8_block(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return replace(eight_bits(request, schemes.fp8_block()), multiple=QUANTIZE["fp8_block"].multiple)


def mxfp8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.mxfp8())


def mxfp4(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.mxfp4())


def nvfp4(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.nvfp4(request.tuning.get("activations", "dynamic")))


def int8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    return eight_bits(request, schemes.weight_only(8, None, symmetric=True, dtype=dtype))


def eight_bits(request: QuantizeRequest, rounding: Rounding) -> Pipeline:
    """Make a pipeline of plain rounding in a format of its own; with dynamic inputs few sequences are enough, as they
    decide only reported errors."""
    inputs, form = rounding.scheme.input_activations, ungrouped(request, rounding)
    samples = None if inputs is not None and inputs.dynamic is not True else REPORT_SAMPLES
    return Pipeline(Nearest(rounding, form.write), form.config, rounding, samples=samples, gram_tokens=REPORT_TOKENS)


PIPELINES = {
    None: sixteen_bit,
    "kv_cache": sixteen_bit,
    "rtn": rtn,
    "w8a8": w8a8,
    "int8": int8,
    "fp8": fp8,
    "fp8_block": fp8_block,
    "nvfp4": nvfp4,
    "mxfp4": mxfp4,
    "mxfp8": mxfp8,
}
