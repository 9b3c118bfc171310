"""The supervisor's metrics for Prometheus, on a registry of their own.

Gauges are read from the store at each request; counters and histograms count changes as they are committed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backend import logs
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import LIVE, TERMINAL, JobState
from backend.store import job_statistics
from backend.store.database import Change, EventsAppended, LeasesRenewed, StateChanged
from backend.store.tables import now
from backend.supervisor.supervisor import Supervisor

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)


class Metrics(Collector):
    """Counts committed changes (`observe`) and answers Prometheus (`serve`)."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor, self.registry = supervisor, CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry, "namespace": "whetstone"}
        self._attempts = Counter("attempts", "Attempts of jobs that ended.", ["kind", "outcome"], **own)
        self._waited = Histogram(
            "queue_wait_seconds", "From submission to claim.", ["kind"], buckets=LONG_SECONDS, **own
        )
        self._started = Histogram(
            "claim_to_start_seconds", "From claim to the worker's start.", ["kind"], buckets=SECONDS, **own
        )
        self._ran = Histogram("run_seconds", "From claim to the end.", ["kind", "outcome"], buckets=LONG_SECONDS, **own)
        self._renewed = Counter("leases_renewed", "Renewals of leases.", **own)
        self._carried = Counter("events_carried", "Events stored.", **own)
        self._lag = Histogram("event_lag_seconds", "From an event to its place in the store.", buckets=SECONDS, **own)
        self.registry.register(self)

    def observe(self, change: Change) -> None:
        match change:
            case LeasesRenewed():
                self._renewed.inc(change.leases)
            case EventsAppended():
                self._carried.inc(len(change.events))
                for event in change.events:
                    self._lag.observe(max(0.0, (now() - event.at).total_seconds()))
            case StateChanged():
                self._count_state(change)

    def _count_state(self, change: StateChanged) -> None:
        after_s = change.after_s or 0.0
        if change.state is JobState.STARTING:
            self._waited.labels(change.kind).observe(after_s)
        elif change.state is JobState.RUNNING:
            self._started.labels(change.kind).observe(after_s)
        elif change.state in TERMINAL:
            self._attempts.labels(change.kind, change.state).inc()
            self._ran.labels(change.kind, change.state).observe(after_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges as they are now. A store that does not answer is a metric too."""
        supervisor = self._supervisor
        yield CounterMetricFamily("whetstone_leases_lost", "Jobs that others took over.", value=supervisor.lost)
        yield CounterMetricFamily("whetstone_store_retries", "Transactions done again.", value=supervisor.store.retries)
        free = shutil.disk_usage(_nearest_folder(supervisor.settings.home)).free
        yield GaugeMetricFamily("whetstone_disk_free_bytes", "Of the home's disk.", value=free)
        try:
            stored = list(self._read_store())
        except WhetstoneError:
            stored = []
        yield GaugeMetricFamily("whetstone_store_up", "1 where the database answers.", value=float(bool(stored)))
        yield from stored

    def _read_store(self) -> Iterator[Metric]:
        with self._supervisor.store.read() as session:
            counts = job_statistics.count_jobs(session)
            oldest_s = job_statistics.oldest_queued_s(session)
            heartbeats = job_statistics.list_heartbeats(session)
        # Jobs by state and kind, and how long the oldest waits.
        jobs = GaugeMetricFamily("whetstone_jobs", "Jobs in the store.", labels=["state", "kind"])
        for (state, kind), number in counts.items():
            jobs.add_metric([state, kind], number)
        yield jobs
        live = sum(number for (state, _), number in counts.items() if state in LIVE)
        yield GaugeMetricFamily("whetstone_jobs_live", "Claimed and not ended.", value=live)
        yield GaugeMetricFamily(
            "whetstone_queue_oldest_seconds", "Of the job that waits longest; 0 for none.", value=oldest_s
        )
        # Heartbeats of all supervisors of the store; `own` marks this one.
        ages = GaugeMetricFamily(
            "whetstone_heartbeat_age_seconds", "Since a supervisor was heard.", labels=["host", "home", "own"]
        )
        for heartbeat in heartbeats:
            own = str(heartbeat.id == self._supervisor.row.id).lower()
            ages.add_metric([heartbeat.host, heartbeat.home, own], heartbeat.age_s)
        yield ages

    def serve(self, host: str, port: int) -> None:
        """Answer in a thread of its own. A port that cannot be opened is only logged, since jobs matter more."""
        try:
            start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:  # OverflowError: the number is not a port
            message = (
                f"No metrics: {host}:{port} cannot be listened on ({getattr(error, 'strerror', error)}); "
                "set WHETSTONE_METRICS_PORT to another."
            )
            logs.log_event("metrics", message, level=logging.ERROR)
            return
        logs.log_event("metrics", f"Metrics are at http://{host}:{port}/metrics.")


def _nearest_folder(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())
