"""The page of the gateway's benchmark: figures of what was measured, and goals that are missed are called that."""

from __future__ import annotations

import argparse

import pytest

from backend.domain.load.records import RequestRecord
from benchmarks import gateway
from benchmarks.gateway import Way

OPTIONS = argparse.Namespace(slices=2, seconds=1.0, litellm=None, note="")


def record(index: int, *, late_ms: float, warm: bool = False, status: str = "ok", chunks: int = 2) -> RequestRecord:
    """Return a request whose server sent its chunks at second 1 and 2, and which saw them `late_ms` later."""
    times = tuple(1.0 + number + late_ms / 1000 for number in range(chunks))
    return RequestRecord(
        index=index,
        stream=0,
        prompt=0,
        warm=warm,
        intended=0.0,
        sent=0.5,
        first_content=times[0],
        chunk_times=times,
        end=9.0,
        status=status,
        text=f"r{index} w0 w1 ",
    )


TRUTH = {number: {"sends": [1.0, 2.0]} for number in range(9)}


def test_figures_are_of_measured_requests_and_of_chunks_that_came_one_by_one() -> None:
    records = [
        record(0, late_ms=900, warm=True),
        record(1, late_ms=3),
        record(2, late_ms=1),
        record(3, late_ms=5, chunks=1),  # two chunks of the server in one
        record(4, late_ms=900, status="timeout"),
    ]
    row = gateway.figures(records, TRUTH, cpu_s=0.01)
    assert (row.requests, row.failed, row.chunks) == (3, 1, 4)
    assert row.ttft_p50 == pytest.approx(503) and row.chunk_p50 == pytest.approx(2)
    assert row.chunk_p99 == pytest.approx(3) and row.cpu_ms == pytest.approx(2)


@pytest.mark.parametrize(
    ("late_ms", "p50", "p99"), [(0.5, "met", "met"), (2.0, "MISSED", "met"), (9, "MISSED", "MISSED")]
)
def test_a_goal_is_judged_by_the_difference_to_asking_directly(late_ms: float, p50: str, p99: str) -> None:
    direct = gateway.figures([record(1, late_ms=100)], TRUTH, cpu_s=None)
    through = gateway.figures([record(2, late_ms=100 + late_ms)], TRUTH, cpu_s=0.001)
    ways = [Way("direct", "http://a"), Way("gateway", "http://b", pid=1)]
    text = gateway.page(ways, {64: [direct, through]}, OPTIONS)
    assert f"1 ms more TTFT p50. {late_ms:+.2f} ms: {p50}." in text
    assert f"3 ms more TTFT p99. {late_ms:+.2f} ms: {p99}." in text
    assert f"| 64 | gateway | 1 | 0 | {600 + late_ms:.2f} | {late_ms:+.2f} |" in text
