"""Goodput: how many requests a second are answered within limits that a person sets, request by request. Pure.

A request counts where every limited latency of its own is within its limit; one that failed, or gave no such latency,
does not (Zhong et al., DistServe, OSDI 2024, section 2; vLLM's bench counts the same). Goodput is those requests over
the duration of the level; the share has a 95% Wilson interval, which takes requests as independent: those of one run
are less than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
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
    def given(self) -> dict[str, float]:
        return {name: limit for name, limit in self if limit is not None}


class CountWithin(NamedTuple):
    """Measured requests of one variant at one level, and those of them within the limits."""

    within: int
    of: int


class Goodput(NamedTuple):
    """`requests_per_s` and its interval in requests a second; `share` 0 to 1 with `interval`."""

    variant: str
    level: Level
    share: float
    interval: tuple[float, float]
    requests_per_s: float
    requests_per_s_interval: tuple[float, float]


def level_goodputs(result: VariantResult, counts: Mapping[VariantLoad, CountWithin]) -> list[Goodput]:
    """One a level whose requests were kept."""
    return [
        _goodput(result.name, level, found)
        for level in result.levels
        if (found := counts.get((result.name, level.load))) is not None and found.of and level.duration_s > 0
    ]


def best_goodputs(evaluation: Evaluation, counts: Mapping[VariantLoad, CountWithin]) -> dict[str, Goodput | None]:
    """Each variant at its highest goodput among the levels that are the server's own figures; None where there is
    none."""
    return {
        result.name: max(
            (found for found in level_goodputs(result, counts) if is_sound(found.level)),
            key=lambda found: found.requests_per_s,
            default=None,
        )
        for result in evaluation.variants
    }


def _goodput(name: str, level: Level, found: CountWithin) -> Goodput:
    low, high = wilson(found.within, found.of)
    a_second = found.of / level.duration_s
    share = found.within / found.of
    return Goodput(name, level, share, (low, high), share * a_second, (low * a_second, high * a_second))
