"""An endpoint at SageMaker in words: its price and its requests. Pure."""

from __future__ import annotations

from backend.domain.deploy.endpoint_metrics import Counts, Traffic
from backend.domain.figures import counted
from backend.domain.machine import price_list

UNREAD = "the number of requests cannot be read: that needs cloudwatch:GetMetricData, or AWS is busy"


def hour(usd: float | None, discount: float) -> str:
    """Return the price of an hour."""
    return (
        "an unknown price" if usd is None else f"{usd:,.2f} USD per hour on demand{price_list.discount_text(discount)}"
    )


def meanwhile(now: float | None, after: float | None, discount: float) -> str:
    """Return what an update in place costs while both versions run, and after."""
    both = None if now is None or after is None else now + after
    then = "" if after is None else f", then {after:,.2f}"
    return (
        f"Old and new run side by side until AWS has switched over; until then it costs {hour(both, discount)}{then}."
    )


def requests(traffic: Traffic | None) -> str:
    """Return the requests of the last hour and in all, without a full stop."""
    if traffic is None:
        return UNREAD
    if traffic.since.requests == 0:
        return "no request yet"
    quick = "" if traffic.p95_ms is None else f", 95% of them within {_duration(traffic.p95_ms)}"
    return f"{_counted(traffic.hour)} in the last hour{quick}; {_counted(traffic.since)} since it was created"


def last_hour(traffic: Traffic | None) -> str:
    """Return the requests of the last hour as a cell of a column."""
    return "?" if traffic is None else f"{traffic.hour.requests:,}"


def _counted(counts: Counts) -> str:
    failed = f" ({counts.errors:,} failed with 5xx)" if counts.errors else ""
    return f"{counted(counts.requests, 'request')}{failed}"


def _duration(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
