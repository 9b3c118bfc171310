"""The resource sampler on real processes: what it counts, how often it speaks, and that threads share one channel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import channel as form
from backend.channel import JobChannel
from backend.domain.errors import DiskFull
from backend.domain.jobs.jobs import Event
from backend.worker.resources import PeakMemory, interval

pytestmark = pytest.mark.process


def test_a_short_job_has_its_point_and_a_full_disk_does_not_end_the_sampler() -> None:
    messages: list[tuple[int, float]] = []
    with PeakMemory(lambda rss, cores: messages.append((rss, cores))) as memory:
        pass
    assert len(messages) == 1 and messages[0][0] == memory.peak > 1_000_000 and messages[0][1] >= 0

    def full(rss: int, cores: float) -> None:
        raise DiskFull

    with PeakMemory(full) as memory:
        pass
    assert memory.peak > 0


@given(st.floats(1, 5 * 86_400))
def test_days_are_at_most_five_hundred_points(total_s: float) -> None:
    at, points = 0.0, 0
    while at < total_s:
        at += interval(at)
        points += 1
    assert points <= 500


def test_many_threads_lose_no_event_and_leave_no_gap(tmp_path: Path) -> None:
    (tmp_path / form.EVENTS).mkdir()
    channel = JobChannel(tmp_path)

    def speak(number: int) -> None:
        for turn in range(40):
            channel.emit(Event(kind="resource", data={"from": number, "turn": turn}), urgent=turn % 3 == 0)

    threads = [threading.Thread(target=speak, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.flush()
    segments = sorted((tmp_path / form.EVENTS).glob("*.jsonl"))
    assert [path.name for path in segments] == [form.segment_name(number) for number in range(1, len(segments) + 1)]
    heard = {(e.data["from"], e.data["turn"]) for path in segments for e in form.decode(path.read_bytes())}
    assert len(heard) == 240
