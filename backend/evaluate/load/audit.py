"""The generator's verdict on itself: was the server measured, or the client? Works on records and samples only."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from backend.domain.load import Audit, LoadPlan, RequestRecord, UsageRung
from backend.domain.metrics import good, steady_window
from backend.domain.order_statistics import percentile
from backend.evaluate.load.level import Run

CPU_LIMIT = 0.9
"""Of one core: above it the loop has no slack, and the server waits for the client."""
LAG_LIMITS = ((50, 0.0025, 0.05), (99, 0.015, 0.1))
"""Percentile of the loop's lag, seconds it may always be, share of the same percentile of TTFT it may be at most. The seconds
are the accuracy promised for TTFT, and for the median a millisecond more, since the loop's timers are rounded to one."""
LAG_SAMPLES = 100
"""Fewer say nothing of a 99th percentile."""
CONCURRENCY_LIMIT = 0.95
SHORTEST_WINDOW_S = 0.25
"""In a shorter one the turnaround of single requests would pass for idle streams."""


def audit(plan: LoadPlan, run: Run, records: Sequence[RequestRecord], usage: UsageRung, parse_cpu_s: float) -> Audit:
    """Judge one level; `usage` is what the server was asked for in the end."""
    lags = sorted(run.lags_s) or [0.0]
    window = steady_window(records)
    achieved = _concurrency_in(records, *window) if window else None
    reason = _overloaded(run, records, lags) or _underloaded(plan, run, records, window, achieved)
    reads = sum(record.reads for record in records)
    return Audit(
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        parse_cpu_s=parse_cpu_s,
        loop_lag_ms_p50=percentile(lags, 50) * 1000,
        loop_lag_ms_p99=percentile(lags, 99) * 1000,
        loop_lag_ms_max=lags[-1] * 1000,
        coalesced_share=sum(record.coalesced for record in records) / reads if reads else 0.0,
        concurrency=plan.concurrency,
        achieved_concurrency=achieved,
        steady_start=window[0] if window else None,
        steady_end=window[1] if window else None,
        usage=usage,
        reconnects=run.reconnects,
        client_limited=reason is not None,
        reason=reason,
        versions={"python": platform.python_version(), "uvloop": _version("uvloop")},
    )


def _overloaded(run: Run, records: Sequence[RequestRecord], lags: Sequence[float]) -> str | None:
    """Why the client's stamps or its reading were late, in one sentence; None where they were not."""
    share = run.cpu_s / run.wall_s if run.wall_s > 0 else 0.0
    if share > CPU_LIMIT:
        return f"the load generator used {share:.0%} of a core, more than {CPU_LIMIT:.0%}"
    waits = sorted(r.first_content - r.sent for r in good(records) if r.first_content is not None and r.sent is not None)
    for q, always, of_wait in LAG_LIMITS:
        if q > 50 and len(lags) < LAG_SAMPLES:
            continue
        lag, allowed = percentile(lags, q), max(always, of_wait * percentile(waits, q) if waits else 0.0)
        if lag > allowed:
            return f"the load generator's loop was {lag * 1000:.1f} ms late (p{q}), more than {allowed * 1000:.1f} ms"
    return None


def _underloaded(
    plan: LoadPlan, run: Run, records: Sequence[RequestRecord], window: tuple[float, float] | None, achieved: float | None
) -> str | None:
    """Why the asked concurrency was never there, in one sentence. Errors and a server that closes connections are not the
    client's doing."""
    if plan.requests is not None and plan.requests < plan.concurrency:
        return f"{plan.requests} requests cannot keep {plan.concurrency} streams busy"
    if window is None or achieved is None or window[1] - window[0] < SHORTEST_WINDOW_S:
        return None
    servers_doing = run.reconnects > 0 or not all(record.ok for record in records)
    if servers_doing or achieved >= CONCURRENCY_LIMIT * plan.concurrency:
        return None
    return f"only {achieved:.1f} of {plan.concurrency} streams were busy on average"


def _concurrency_in(records: Sequence[RequestRecord], start: float, end: float) -> float:
    """Mean number of requests under way between the two moments, by when each was written and when its answer ended."""
    busy = sum(max(0.0, min(r.end, end) - max(r.sent, start)) for r in records if r.sent is not None)
    return busy / (end - start)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
