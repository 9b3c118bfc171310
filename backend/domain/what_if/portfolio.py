"""The best variant for each number of streams, and the points at which to switch between them. Pure.

Which engine and recipe is fastest often depends on how many requests run at the same time. A portfolio names one
variant for each range of streams. It is read from measured levels of one evaluation: nothing is interpolated, and every
switch lies between two measured levels.

Method. A path through the levels chooses one variant at each, so that the sum of ln(tokens/s) - SWITCH_COST x switches
is as large as possible (Viterbi's algorithm). So a variant that is ahead by less than SWITCH_GAIN at one level is no
reason to switch: a difference like that is within what such measurements show by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from statistics import fmean

from pydantic import Field

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.quality_loss import known_loss
from backend.domain.limits.slo import Slo

SWITCH_GAIN = 1.03
"""A switch must gain more than this factor over the levels that it serves, taken together."""
SWITCH_COST = math.log(SWITCH_GAIN)


class StreamRange(Frozen):
    """The variant that serves from `first` to `last` streams, both measured."""

    variant: str
    first: int
    last: int


class SwitchPoint(Frozen):
    """A change of the portfolio. At `up` streams in flight or more the `above` variant serves new requests, at `down`
    or fewer the `below` one; between them whichever served last goes on, so that a load near the point does not make
    them take turns."""

    below: str
    above: str
    down: int
    up: int


class Portfolio(Frozen):
    """`gain`: the geometric mean, over the measured levels, of tokens/s against `best_single`, the one variant that is
    best over all of them; None where no single variant is allowed at every level. `unserved`: levels at which no
    variant is allowed."""

    ranges: tuple[StreamRange, ...]
    switches: tuple[SwitchPoint, ...]
    best_single: str | None
    gain: float | None
    least: float | None
    """The least of these ratios: how far the portfolio falls behind the best single variant anywhere."""
    unserved: tuple[int, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    """Variants that are allowed at no level, with the reason."""


def make_portfolio(evaluation: Evaluation, limits: Slo, max_kl: float | None = None) -> Portfolio | None:
    """Return the portfolio of an evaluation's variants within latency limits and a quality floor.

    `max_kl`: the most mean KL divergence, in nats per token, as served where it was measured so. A variant that was not
    scored is allowed only without a floor, or as the baseline. None where fewer than two levels of streams were
    measured, or no variant is allowed at any.
    """
    # 1. Tokens/s of each allowed variant at each level.
    left_out: dict[str, str] = {}
    rates: dict[str, dict[int, float]] = {}
    baseline = evaluation.variants[0].name if evaluation.variants else None
    for result in evaluation.variants:
        refusal = None if result.name == baseline else _floor_refusal(result, max_kl)
        allowed = {} if refusal else _allowed_rates(result, limits)
        if allowed:
            rates[result.name] = allowed
        else:
            left_out[result.name] = refusal or "it meets the latency limits at no measured level"
    measured = sorted({level.concurrency for result in evaluation.variants for level in _stream_levels(result)})
    served = [streams for streams in measured if any(streams in row for row in rates.values())]
    if len(measured) < 2 or not served:
        return None
    # 2. The path, its ranges and its switches.
    path = find_path(served, rates)
    ranges = _join_ranges(served, path)
    switches = tuple(
        SwitchPoint(below=low.variant, above=high.variant, down=low.last, up=high.first)
        for low, high in pairwise(ranges)
    )
    # 3. What it gains.
    ratios = _compare_with_best_single(served, path, rates)
    return Portfolio(
        ranges=ranges,
        switches=switches,
        best_single=ratios[0] if ratios else None,
        gain=math.exp(fmean(map(math.log, ratios[1]))) if ratios else None,
        least=min(ratios[1]) if ratios else None,
        unserved=tuple(streams for streams in measured if streams not in served),
        left_out=left_out,
    )


def find_path(levels: Sequence[int], rates: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the variant at each level that makes the sum of ln(tokens/s), less the switches, largest.

    `rates`: tokens/s by variant and level; each level has at least one variant.
    """
    # 1. The best sum that ends with each variant, level by level, and where it came from.
    best: dict[str, float] = {}
    steps: list[dict[str, str]] = []
    for position, level in enumerate(levels):
        sums: dict[str, float] = {}
        came_from: dict[str, str] = {}
        for variant, row in rates.items():
            if level not in row:
                continue
            arriving = {name: total - SWITCH_COST * (name != variant) for name, total in best.items()}
            previous = max(arriving, key=lambda name: arriving[name]) if position else variant
            sums[variant] = (arriving[previous] if position else 0.0) + math.log(row[level])
            came_from[variant] = previous
        best = sums
        steps.append(came_from)
    # 2. Back from the best end.
    path = [max(best, key=lambda name: best[name])]
    for came_from in reversed(steps[1:]):
        path.append(came_from[path[-1]])
    return path[::-1]


def choose_variant(portfolio: Portfolio, streams: int, serving: str | None = None) -> str:
    """Return the variant for new requests at so many streams in flight. `serving`: the one that served last, which goes
    on between the two sides of a switch."""
    for switch in portfolio.switches:
        if streams <= switch.down:
            return switch.below
        if streams < switch.up:
            return serving if serving in {switch.below, switch.above} else switch.below
    return portfolio.ranges[-1].variant


def _stream_levels(result: VariantResult) -> list[Level]:
    return [level for level in result.levels if level.load.is_closed]


def _allowed_rates(result: VariantResult, limits: Slo) -> dict[int, float]:
    """Return output tokens/s at each level that is sound and within the limits."""
    return {
        level.concurrency: level.output_tokens_per_s
        for level in _stream_levels(result)
        if level.output_tokens_per_s and is_sound(level) and limits.meets(level)
    }


def _floor_refusal(result: VariantResult, max_kl: float | None) -> str | None:
    if max_kl is None:
        return None
    loss = known_loss(result)
    if loss is None:
        return "its quality was not measured"
    return f"its KL divergence is {loss:.3g}, over {max_kl:g}" if loss > max_kl else None


def _join_ranges(levels: Sequence[int], path: Sequence[str]) -> tuple[StreamRange, ...]:
    ranges = []
    for variant, pairs in groupby(zip(levels, path, strict=True), key=lambda pair: pair[1]):
        streams = [level for level, _ in pairs]
        ranges.append(StreamRange(variant=variant, first=streams[0], last=streams[-1]))
    return tuple(ranges)


def _compare_with_best_single(
    levels: Sequence[int], path: Sequence[str], rates: Mapping[str, Mapping[int, float]]
) -> tuple[str, list[float]] | None:
    """Return the best single variant over all levels, and the path's tokens/s against its own at each."""
    complete = {name: row for name, row in rates.items() if all(level in row for level in levels)}
    if not complete:
        return None
    single = max(complete, key=lambda name: sum(math.log(complete[name][level]) for level in levels))
    return single, [rates[name][level] / complete[single][level] for level, name in zip(levels, path, strict=True)]
