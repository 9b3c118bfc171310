"""Objectives of a search such as `ttft_p95<=300ms`, and whether enough requests meet them. Pure.

`ttft_p95<=300ms` demands that at least 95% of the requests have a TTFT of at most 300 ms. A request that failed, or
gave no such latency, is outside. The share within has a 95% Wilson score interval (E. B. Wilson, Probable inference,
the law of succession, and statistical inference, JASA 22, 1927): the verdict is `kept` where all of the interval is at
or above the demanded share, `missed` where all of it is below, else `undecided`. The interval assumes independent
requests; those of one run are less than that, so the true certainty is lower than 95%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.domain.errors import RequestError
from backend.domain.evaluation.metrics import latency_ms
from backend.domain.limits.latency_limit import LatencyLimit
from backend.domain.load.records import RequestRecord
from backend.domain.maths.intervals import Z, wilson

ObjectiveVerdict = Literal["kept", "missed", "undecided"]
METRICS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "tpot_ms", "latency": "client_latency_ms"}
_FORM = re.compile(r"\s*([a-z]+)_p(\d{2})\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*")
_ROUNDING = 1e-12


class Objective(NamedTuple):
    """A limit that the `share`, in (0, 1), of the requests must be within; `text` is what the person wrote."""

    text: str
    share: float
    limit: LatencyLimit

    def count_within(self, records: Sequence[RequestRecord]) -> int:
        """Count the requests within the limit."""
        return sum(self.limit.allows(latency_ms(self.limit.metric, record)) for record in records)

    def requests_needed(self) -> int:
        """Return the fewest requests that can show the objective met, with none outside.

        Wilson's lower end, n / (n + z^2), then reaches the share.
        """
        return math.ceil(Z * Z * self.share / (1 - self.share))


class ObjectiveCheck(NamedTuple):
    """The verdict over all objectives; `shares` and `intervals` have one entry for each."""

    verdict: ObjectiveVerdict
    shares: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]


def parse_objective(text: str) -> Objective:
    """Parse an objective. Raises RequestError with one sentence."""
    match = _FORM.fullmatch(text)
    if not match or match[1] not in METRICS or int(match[2]) == 0 or float(match[3]) <= 0:
        known = ", ".join(METRICS)
        raise RequestError(
            f"`{text[:80]}` is not an objective: write one such as ttft_p95<=300ms, of {known}, in ms or s."
        )
    most_ms = float(match[3]) * (1000 if match[4] == "s" else 1)
    return Objective("".join(text.split()), int(match[2]) / 100, LatencyLimit(METRICS[match[1]], most_ms))


def check_objectives(objectives: Sequence[Objective], records: Sequence[RequestRecord]) -> ObjectiveCheck:
    """Judge the measured requests, without warm-up. All objectives must be met; one that is missed decides."""
    # 1. The share of requests within each limit.
    measured = [record for record in records if not record.warm]
    counts = [objective.count_within(measured) for objective in objectives]
    intervals = tuple(wilson(count, len(measured)) for count in counts)
    # 2. A verdict for each objective, and the worst of them.
    verdicts = {_verdict(objective.share, interval) for objective, interval in zip(objectives, intervals, strict=True)}
    verdict: ObjectiveVerdict = "kept"
    if "missed" in verdicts:
        verdict = "missed"
    elif "undecided" in verdicts:
        verdict = "undecided"
    return ObjectiveCheck(verdict, tuple(count / max(1, len(measured)) for count in counts), intervals)


def _verdict(share: float, interval: tuple[float, float]) -> ObjectiveVerdict:
    if interval[0] >= share - _ROUNDING:
        return "kept"
    return "missed" if interval[1] < share else "undecided"
