"""The gateway's metrics for Prometheus, by model and name of the client's key, on a registry of their own."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backend.gateway.exchange import Exchange

CONTENT_TYPE = CONTENT_TYPE_LATEST
TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LABELS = ["model", "key"]


class Metrics:
    """Counts exchanges. A model that is not served has the label `unknown`, so that clients make no labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry, "namespace": "whetstone_gateway"}
        self._requests = Counter("requests", "Requests that ended, by HTTP status.", [*LABELS, "status"], **own)
        self._errors = Counter("errors", "Requests that failed, by kind.", [*LABELS, "kind"], **own)
        self._in_flight = Gauge("in_flight", "Requests that are being passed on.", LABELS, **own)
        self._ttft = Histogram(
            "ttft_seconds", "From a request to the first byte of its stream.", LABELS, buckets=TTFT_S, **own
        )
        self._seconds = Histogram("request_seconds", "From a request to its end.", LABELS, buckets=SECONDS, **own)
        self._tokens = Counter("tokens", "Tokens, as servers counted them.", [*LABELS, "direction"], **own)
        self._served = Gauge("models", "Names of models that are served.", **own)
        self._store_up = Gauge("store_up", "1 where the database answered the last time.", **own)

    def begin(self, exchange: Exchange) -> None:
        """Count a request that is being passed on."""
        self._in_flight.labels(exchange.model, exchange.key).inc()

    def end(self, exchange: Exchange) -> None:
        """Count a request that was passed on, to its end."""
        self._in_flight.labels(exchange.model, exchange.key).dec()

    def record(self, exchange: Exchange) -> None:
        """Count an ended request: status, error, times and tokens."""
        labels = (exchange.model, exchange.key)
        self._requests.labels(*labels, exchange.status or "none").inc()
        if exchange.error is not None:
            self._errors.labels(*labels, exchange.error).inc()
        if exchange.ttft_s is not None:
            self._ttft.labels(*labels).observe(exchange.ttft_s)
        self._seconds.labels(*labels).observe(exchange.duration_s)
        counts = (("prompt", exchange.usage.prompt_tokens), ("completion", exchange.usage.completion_tokens))
        for direction, tokens in counts:
            if tokens is not None:
                self._tokens.labels(*labels, direction).inc(tokens)

    def observe_refresh(self, names: int, *, store_up: bool) -> None:
        """Record how many names are served, and whether the database answered."""
        self._served.set(names)
        self._store_up.set(store_up)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
