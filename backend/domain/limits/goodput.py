"""Goodput: requests per second that are answered within a person's latency limits, request by request. Pure.

A request counts where every limited latency of its own is within its limit; one that failed, or gave no such latency,
does not (Zhong et al., DistServe, OSDI 2024, section 2; vLLM's bench counts the same). Goodput is those requests over
the duration of the level; the share has a 95% Wilson interval, which assumes independent requests: those of one run are
less than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import LatencyLimit
from backend.domain.load.load import Load
from backend.domain.maths.intervals import wilson

VariantLoad = tuple[str, Load]
"""(variant, load)"""


class RequestLimits(Frozen):
    """Upper limits for each request, in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    client_latency_ms: float | None = None

    @property
    def latency_limits(self) -> list[LatencyLimit]:
        """The limits that are set; each holds for every single request."""
        return [LatencyLimit(metric, most_ms) for metric, most_ms in self if most_ms is not None]


class CountWithin(NamedTuple):
    """Measured requests of one variant at one level, and how many of them are within the limits."""

    within: int
    of: int


class Goodput(NamedTuple):
    """`requests_per_s` and its interval in requests per second; `share` from 0 to 1 with `interval`."""

    variant: str
    level: Level
    share: float
    interval: tuple[float, float]
    requests_per_s: float
    requests_per_s_interval: tuple[float, float]


def level_goodputs(result: VariantResult, counts: Mapping[VariantLoad, CountWithin]) -> list[Goodput]:
    """Return the goodput of each level whose requests were stored."""
    goodputs = []
    for level in result.levels:
        count = counts.get((result.name, level.load))
        if count is not None and count.of and level.duration_s > 0:
            goodputs.append(_goodput(result.name, level, count))
    return goodputs


def best_goodputs(evaluation: Evaluation, counts: Mapping[VariantLoad, CountWithin]) -> dict[str, Goodput | None]:
    """Return each variant's highest goodput over its sound levels; None where there is none."""
    best: dict[str, Goodput | None] = {}
    for result in evaluation.variants:
        sound = [goodput for goodput in level_goodputs(result, counts) if is_sound(goodput.level)]
        best[result.name] = max(sound, key=lambda goodput: goodput.requests_per_s, default=None)
    return best


def _goodput(name: str, level: Level, count: CountWithin) -> Goodput:
    low, high = wilson(count.within, count.of)
    requests_per_s = count.of / level.duration_s
    share = count.within / count.of
    interval_per_s = (low * requests_per_s, high * requests_per_s)
    return Goodput(name, level, share, (low, high), share * requests_per_s, interval_per_s)
