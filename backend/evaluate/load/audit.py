"""Judges whether a level measured the server or the load generator itself. Works on records and samples only."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from backend.domain.evaluation.metrics import good_records, split_slices, steady_window
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.domain.maths.intervals import percentile
from backend.evaluate.load.level import FinishedLevel

CPU_LIMIT = 0.9
"""Share of one core above which the loop has no slack, and the server waits for the client."""
LAG_LIMITS = ((50, 0.0025, 0.05), (99, 0.015, 0.1))
"""Percentile of the loop's lag, seconds that are always allowed, and the share of the same percentile of TTFT allowed.

The seconds are the accuracy promised for TTFT; for the median a millisecond more, since the loop's timers are rounded
to one."""
LAG_SAMPLES = 100
"""Fewer samples do not give a 99th percentile."""
CONCURRENCY_LIMIT = 0.95
WAITED_LIMIT = 0.01
SHORTEST_WINDOW_S = 0.25
"""In a shorter window the turnaround of single requests would count as idle streams."""


def make_audit(plan: LoadPlan, run: FinishedLevel, records: Sequence[RequestRecord], parse_cpu_s: float) -> Audit:
    """Judge one level; `plan` is the one that the server accepted in the end."""
    # 1. Judge the client: was it overloaded, or did it send less than planned?
    lags = sorted(run.lags_s) or [0.0]
    windows = [(part, window) for part in split_slices(records) if (window := steady_window(part))]
    window = (windows[0][1][0], windows[-1][1][1]) if windows else None
    achieved = _concurrency(windows)
    if plan.load.is_closed:
        steady_s = sum(end - start for _, (start, end) in windows)
        too_little = _underloaded(plan, run, records, steady_s, achieved)
    else:
        too_little = _late(plan, run, records)
    overloaded = _overloaded(run, records, lags)
    reason = overloaded or too_little

    # 2. Return all figures with that judgement.
    reads = sum(record.reads for record in records)
    return Audit(
        wall_s=run.wall_s,
        cpu_s=run.cpu_s,
        parse_cpu_s=parse_cpu_s,
        loop_lag_ms_p50=percentile(lags, 50) * 1000,
        loop_lag_ms_p99=percentile(lags, 99) * 1000,
        loop_lag_ms_max=lags[-1] * 1000,
        coalesced_share=sum(record.coalesced for record in records) / reads if reads else 0.0,
        **_clockwork(run, records, window),
        achieved_concurrency=achieved,
        steady_start=window[0] if window else None,
        steady_end=window[1] if window else None,
        usage=plan.usage,
        length_field=plan.length_field,
        reconnects=run.reconnects,
        peak_rss_bytes=_peak_rss(),
        client_limited=reason is not None,
        late=overloaded is not None,
        reason=reason,
        versions={"python": platform.python_version(), "uvloop": _version("uvloop")},
    )


def _overloaded(run: FinishedLevel, records: Sequence[RequestRecord], lags: Sequence[float]) -> str | None:
    """Return why the client's time stamps were late, in one phrase; None if they were not."""
    share = run.cpu_s / run.wall_s if run.wall_s > 0 else 0.0
    if share > CPU_LIMIT:
        return f"the load generator used {share:.0%} of a core, more than {CPU_LIMIT:.0%}"
    return _too_late(lags, records, "the load generator's loop was")


def _too_late(lags: Sequence[float], records: Sequence[RequestRecord], what: str) -> str | None:
    waits = sorted(
        r.first_content - r.sent for r in good_records(records) if r.first_content is not None and r.sent is not None
    )
    for q, always, of_wait in LAG_LIMITS:
        if q > 50 and len(lags) < LAG_SAMPLES:
            continue
        lag, allowed = percentile(lags, q), max(always, of_wait * percentile(waits, q) if waits else 0.0)
        if lag > allowed:
            return f"{what} {lag * 1000:.1f} ms late (p{q}), more than {allowed * 1000:.1f} ms"
    return None


def _late(plan: LoadPlan, run: FinishedLevel, records: Sequence[RequestRecord]) -> str | None:
    """Return why requests were not sent when they were due, in one phrase; None if they were."""
    if run.waited > WAITED_LIMIT * len(records):
        return (
            f"{run.waited} of {len(records)} requests had to wait for one of the {plan.streams} connections: "
            "allow more of them, if the server is to get so many requests"
        )
    return (
        _too_late(sorted(run.send_lags_s), records, "requests were taken up")
        if run.send_lags_s and not run.waited
        else None
    )


def _clockwork(
    run: FinishedLevel, records: Sequence[RequestRecord], window: tuple[float, float] | None
) -> dict[str, Any]:
    """Return the audit's figures of an open loop; empty for a closed one."""
    if not run.send_lags_s:
        return {}
    lags = sorted(run.send_lags_s)
    figures = {"send_lag_ms_p50": percentile(lags, 50) * 1000, "send_lag_ms_p99": percentile(lags, 99) * 1000}
    if window is not None:
        length = window[1] - window[0]
        due = sum(window[0] < r.intended <= window[1] and not r.turn for r in records)
        done = sum(window[0] < r.end <= window[1] and r.ok and not r.turn for r in records)
        figures |= {"offered_per_s": due / length, "completed_per_s": done / length}
    return {**figures, "waited": run.waited}


def _underloaded(
    plan: LoadPlan,
    run: FinishedLevel,
    records: Sequence[RequestRecord],
    steady_s: float,
    achieved: float | None,
) -> str | None:
    """Return why the planned concurrency was not reached, in one phrase; None if it was.

    Errors, and a server that closes connections, are not the client's fault.
    """
    # Too few requests for the streams.
    if plan.requests is not None and plan.requests < plan.streams:
        return f"{plan.requests} requests cannot keep {plan.streams} streams busy"
    # A run that is too short says nothing.
    if achieved is None or steady_s < SHORTEST_WINDOW_S:
        return None
    # Failed requests and new connections are the server's doing.
    servers_doing = run.reconnects > 0 or not all(record.ok for record in records)
    if servers_doing or achieved >= CONCURRENCY_LIMIT * plan.streams:
        return None
    return f"only {achieved:.1f} of {plan.streams} streams were busy on average"


def _concurrency(windows: Sequence[tuple[Sequence[RequestRecord], tuple[float, float]]]) -> float | None:
    """Return the mean number of requests under way over the steady windows; None without one."""
    length = sum(end - start for _, (start, end) in windows)
    return sum(_busy_s(part, *window) for part, window in windows) / length if length > 0 else None


def _busy_s(records: Sequence[RequestRecord], start: float, end: float) -> float:
    """Return the seconds that requests were under way between two moments, from writing to the end of the answer."""
    spans = [(record.start, record.end) for record in records if record.start is not None]
    return sum(max(0.0, min(ended, end) - max(begun, start)) for begun, ended in spans)


def _peak_rss() -> int | None:
    """Return the peak memory from /proc: getrusage would include what the parent had when it started this process."""
    with suppress(OSError, ValueError, IndexError):
        line = next(
            (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")), ""
        )
        return int(line.split()[1]) * 1024
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
