"""Streams that nobody kept busy: throughput at 8 streams is not what two last answers gave."""

from __future__ import annotations

import pytest

from backend.domain.evaluation.document import Level
from backend.domain.evaluation.soundness import busy_streams, idle_streams_warning
from backend.domain.load.load import Load
from tests import simulated


def timed(streams: int, requests: int, mean_s: float, duration_s: float) -> Level:
    level = simulated.level(streams)
    assert level.client_latency_ms is not None
    latency = level.client_latency_ms.model_copy(update={"mean": mean_s * 1000})
    changed = {"requests": requests, "invocations": requests, "invocation_errors": 0, "duration_s": duration_s}
    return level.model_copy(update={"client_latency_ms": latency, **changed})


def test_requests_under_way_on_average_are_those_of_littles_law() -> None:
    assert busy_streams(timed(8, 48, 2.0, 24.0)) == pytest.approx(4.0)
    assert busy_streams(timed(8, 48, 2.0, 12.0)) == pytest.approx(8.0)
    open_loop = timed(8, 48, 2.0, 24.0).model_copy(update={"load": Load("rate", 2.0)})
    assert busy_streams(open_loop) is None
    assert busy_streams(timed(8, 48, 2.0, 24.0).model_copy(update={"client_latency_ms": None})) is None


def test_a_level_whose_end_is_most_of_it_is_told_with_what_to_ask_for() -> None:
    busy, idle = timed(4, 16, 1.0, 4.5), timed(8, 8, 2.0, 4.0)
    warning = idle_streams_warning([simulated.result("original", [busy, idle])])
    assert (
        warning is not None
        and warning.startswith("At 8 streams only 4.00 were busy on average")
        and "24 requests per level" in warning
    )
    assert idle_streams_warning([simulated.result("original", [busy])]) is None
    assert idle_streams_warning([]) is None
