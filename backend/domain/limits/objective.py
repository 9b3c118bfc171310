"""Service level objectives such as `ttft_p95<=300ms`, and whether requests keep them as surely as their number can
tell. Pure.

`ttft_p95<=300ms` asks that at least 95% of the requests have a TTFT of at most 300 ms. A request that failed, or gave
no such latency, is outside. The share within has a 95% Wilson score interval (E. B. Wilson, Probable inference, the law
of succession, and statistical inference, JASA 22, 1927): `kept` where all of it is at or above the share asked for,
`missed` where all of it is below, else `undecided`. It takes requests as independent; those of one run are less than
that, so the true certainty is lower than 95%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.domain.errors import RequestError
from backend.domain.evaluation.metrics import latency_ms
from backend.domain.load.records import RequestRecord
from backend.domain.maths.intervals import Z, wilson

ObjectiveVerdict = Literal["kept", "missed", "undecided"]
METRICS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "tpot_ms", "latency": "client_latency_ms"}
_FORM = re.compile(r"\s*([a-z]+)_p(\d{2})\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*")


class Objective(NamedTuple):
    """`metric` as in a level, `share` in (0, 1), `limit_ms` in milliseconds; `text` is what the user wrote."""

    text: str
    metric: str
    share: float
    limit_ms: float

    def within(self, records: Sequence[RequestRecord]) -> int:
        values = (latency_ms(self.metric, record) for record in records)
        return sum(value is not None and value <= self.limit_ms for value in values)

    def requests_needed(self) -> int:
        """The fewest that can show it kept, with none outside: Wilson's lower end n / (n + z^2) then reaches the
        share."""
        return math.ceil(Z * Z * self.share / (1 - self.share))


class ObjectiveCheck(NamedTuple):
    """`shares` and `intervals`: one an objective."""

    verdict: ObjectiveVerdict
    shares: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]


def parse_objective(text: str) -> Objective:
    """Read an objective. Raises RequestError with one sentence."""
    match = _FORM.fullmatch(text)
    if not match or match[1] not in METRICS or int(match[2]) == 0 or float(match[3]) <= 0:
        known = ", ".join(METRICS)
        raise RequestError(
            f"`{text[:80]}` is not an objective: write one such as ttft_p95<=300ms, of {known}, in ms or s."
        )
    limit = float(match[3]) * (1000 if match[4] == "s" else 1)
    return Objective("".join(text.split()), METRICS[match[1]], int(match[2]) / 100, limit)


def check_objectives(objectives: Sequence[Objective], records: Sequence[RequestRecord]) -> ObjectiveCheck:
    """Judge the measured requests (warm-up left out). All must be kept; one missed is enough to miss."""
    measured = [record for record in records if not record.warm]
    counts = [objective.within(measured) for objective in objectives]
    intervals = tuple(wilson(count, len(measured)) for count in counts)
    verdicts = {_verdict(objective.share, interval) for objective, interval in zip(objectives, intervals, strict=True)}
    verdict: ObjectiveVerdict = "missed" if "missed" in verdicts else "undecided" if "undecided" in verdicts else "kept"
    return ObjectiveCheck(verdict, tuple(count / max(1, len(measured)) for count in counts), intervals)


def _verdict(share: float, interval: tuple[float, float]) -> ObjectiveVerdict:
    rounding = 1e-12
    if interval[0] >= share - rounding:
        return "kept"
    return "missed" if interval[1] < share else "undecided"
