"""What a supervisor's log and its figures say of what it did: what was committed, once."""

from __future__ import annotations

import logging
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from backend.domain.jobs.jobs import Event, JobState
from backend.store import history, leases, queue
from backend.store.tables import JobRow
from backend.supervisor.__main__ import TICK_SECONDS, JobLog, Pace
from backend.supervisor.metrics import Metrics
from tests.homes import DATABASE
from tests.simulated_workers import Home


def submit(home: Home, job: str = "j-1") -> None:
    row = JobRow(
        id=job, kind="optimize", state=JobState.QUEUED, title="t", owner="t", spec="{}", terms='{"retries": 0}'
    )
    home.store.run(lambda session: queue.submit(session, row))


def figures(metrics: Metrics) -> dict[str, float]:
    """By name and labels, without what takes time."""
    text = generate_latest(metrics.registry).decode()
    return {
        f"{sample.name}{sorted(sample.labels.values()) or ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_figures_follow_a_job_from_the_queue_to_its_end(simulated_home: Home) -> None:
    metrics = Metrics(simulated_home.supervisor)
    simulated_home.store.watch = metrics.observe
    submit(simulated_home)
    assert figures(metrics)["whetstone_jobs['optimize', 'queued']"] == 1.0
    simulated_home.tick()
    simulated_home.supervisor.beat()
    worker = simulated_home._world.workers[0]
    worker.say()
    worker.succeed()
    simulated_home.tick()
    result = figures(metrics)
    for name, value in {
        "whetstone_jobs['optimize', 'succeeded']": 1.0,
        "whetstone_attempts_total['optimize', 'succeeded']": 1.0,
        "whetstone_run_seconds_count['optimize', 'succeeded']": 1.0,
        "whetstone_queue_wait_seconds_count['optimize']": 1.0,
        "whetstone_claim_to_start_seconds_count['optimize']": 1.0,
        "whetstone_leases_renewed_total": 1.0,
        "whetstone_leases_lost_total": 0.0,
        "whetstone_events_carried_total": 3.0,
        "whetstone_event_lag_seconds_count": 3.0,
        "whetstone_store_retries_total": 0.0,
        "whetstone_store_up": 1.0,
        "whetstone_queue_oldest_seconds": 0.0,
        "whetstone_jobs_live": 0.0,
    }.items():
        assert result[name] == value, (name, result)
    assert result["whetstone_disk_free_bytes"] > 0
    (age,) = [value for name, value in result.items() if name.startswith("whetstone_heartbeat_age_seconds")]
    assert 0 <= age < leases.STALE_SECONDS


def test_a_job_that_another_took_over_is_a_lease_lost(simulated_home: Home) -> None:
    metrics = Metrics(simulated_home.supervisor)
    submit(simulated_home)
    simulated_home.tick()
    simulated_home.store.run(
        lambda session: leases.move(session, leases.read_lease(queue.get(session, "j-1")), JobState.LOST)
    )
    simulated_home.tick()
    assert figures(metrics)["whetstone_leases_lost_total"] == 1.0


def test_a_store_that_does_not_answer_is_a_figure_too(simulated_home: Home, tmp_path: Path) -> None:
    metrics = Metrics(simulated_home.supervisor)
    simulated_home.store.engine.dispose()
    (tmp_path / DATABASE).write_bytes(b"no database")
    result = figures(metrics)
    assert result["whetstone_store_up"] == 0.0 and "whetstone_jobs_live" not in result


@pytest.mark.process
def test_they_are_served_on_loopback_and_a_port_that_is_taken_stops_nobody(
    simulated_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    Metrics(simulated_home.supervisor).serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"whetstone_disk_free_bytes" in answer.read()
    Metrics(simulated_home.supervisor).serve("127.0.0.1", port)
    assert "cannot be listened on" in caplog.text


def test_the_log_has_a_line_for_each_change_with_its_job_and_attempt(
    simulated_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulated_home.store.watch = JobLog().observe
    submit(simulated_home)
    simulated_home.tick()
    worker = simulated_home._world.workers[0]
    worker.channel.emit(Event(kind="warning", message="mind this"))
    worker.alive = False
    simulated_home.tick()
    rows = [
        (getattr(r, "event", None), getattr(r, "job", None), getattr(r, "attempt", None), r.levelname)
        for r in caplog.records
    ]
    assert rows == [
        ("starting", "j-1", 1, "INFO"),
        ("running", "j-1", 1, "INFO"),
        ("warning", "j-1", 1, "WARNING"),
        ("lost", "j-1", 1, "WARNING"),
    ]
    assert "nobody saw it end" in caplog.records[-1].getMessage()


def test_what_was_rolled_back_was_never_told(simulated_home: Home) -> None:
    messages: list[object] = []
    simulated_home.store.watch = messages.append
    submit(simulated_home)
    messages.clear()

    with pytest.raises(ZeroDivisionError), simulated_home.store.session() as session:
        history.append(session, "j-1", [Event(kind="note", message="x")])
        raise ZeroDivisionError
    assert messages == []
    simulated_home.store.run(lambda session: history.append(session, "j-1", [Event(kind="note", message="x")]))
    assert len(messages) == 1


def test_a_round_in_which_a_job_moved_is_followed_by_the_next_at_once(simulated_home: Home) -> None:
    pace = Pace()
    simulated_home.store.watch = pace.observe
    assert pace.pause() == TICK_SECONDS
    submit(simulated_home)
    simulated_home.tick()
    assert [pace.pause() for _ in range(7)] == [0.0, 0.01, 0.02, 0.04, 0.08, 0.16, TICK_SECONDS]
    simulated_home._world.workers[0].say()
    simulated_home.tick()
    assert pace.pause() == TICK_SECONDS, "an event alone is no reason to hurry"
    simulated_home._world.workers[0].succeed()
    simulated_home.tick()
    assert pace.pause() == 0.0
