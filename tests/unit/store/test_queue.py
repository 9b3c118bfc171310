"""The queue's rules on a real SQLite store, and the schema against Alembic's own view of it."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text
from sqlmodel import select

from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs.claims import Capacity, Claim
from backend.domain.jobs.jobs import TERMINAL, TRANSITIONS, Event, JobState
from backend.domain.machine.device import GIB
from backend.service.jobs import jobs
from backend.settings import Settings
from backend.store import history, home, leases, queue
from backend.store.database import HEAD, Store, StoreUnavailable, alembic_config, open_store
from backend.store.tables import Base, ClaimRow, JobRow, SupervisorRow
from tests.homes import open_home

REQUIRED: dict[str, Any] = {
    "id": "a",
    "kind": "optimize",
    "state": "succeeded",
    "title": "t",
    "owner": "t",
    "spec": "{}",
    "rank": 0.0,
    "yields": False,
    "claim": "{}",
    "terms": "{}",
    "attempt": 1,
    "retried": 0,
    "strikes": 0,
    "aside": False,
    "cancel_requested": False,
    "token": 0,
    "segment": 0,
    "created_at": "2026-11-25 00:00:00.000000",
}
"""The columns of a job that a database asks for."""
CAPACITY = Capacity(cores=2, memory_bytes=8 * GIB, gpus=2)
SUPERVISOR = SupervisorRow(
    id="s-1", host="one", home="/a", pid=1, process_started="", capacity=CAPACITY.model_dump_json()
)
BACKGROUND, WHOLE = Claim(background=True, cores=0, gpus=()), Claim(whole=True)


ALL = Claim()


def put(store: Store, name: str, claim: Claim = ALL, **fields: Any) -> None:
    row = JobRow(
        id=name, kind="optimize", state=JobState.QUEUED, title=name, owner="t", spec="{}", claim=claim.text, **fields
    )
    with store.session() as session:
        queue.submit(session, row)


def claim_next(store: Store) -> str | None:
    with store.session() as session:
        row = queue.find_claimable(session, SUPERVISOR.host, CAPACITY)
        return row.id if row and leases.claim(session, row, SUPERVISOR) else None


def end(store: Store, name: str) -> None:
    with store.session() as session:
        leases.move(session, leases.read_lease(queue.get(session, name)), JobState.SUCCEEDED)


def test_the_migrations_make_exactly_the_tables_of_the_models(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    assert ScriptDirectory.from_config(alembic_config("sqlite://")).get_current_head() == HEAD


def test_a_file_that_is_no_database_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "whetstone.db").write_text("this is not a database, whatever its name says" * 100)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        open_store(Settings(home=tmp_path))


def test_a_claimed_job_cannot_be_claimed_again(store: Store) -> None:
    put(store, "a")
    assert claim_next(store) == "a"
    with store.session() as session:
        row = queue.get(session, "a")
        assert leases.claim(session, row, SUPERVISOR) is None
        row.state = JobState.QUEUED  # as somebody saw it who looked before the claim
        session.expunge(row)
        assert leases.claim(session, row, SUPERVISOR) is None


def test_a_change_that_is_refused_leaves_a_running_job_its_devices(store: Store) -> None:
    put(store, "a")
    with store.session() as session:
        lease = leases.read_lease(queue.get(session, "a"))
    assert claim_next(store) == "a"
    with store.session() as session, suppress(leases.Fenced):
        leases.move(session, lease, JobState.CANCELLED)
    with store.read() as session:
        assert queue.get(session, "a").state == JobState.STARTING
        assert session.exec(select(ClaimRow).where(ClaimRow.job_id == "a")).first() is not None


def test_one_job_of_all_cores_and_installs_beside_it(store: Store) -> None:
    put(store, "a")
    put(store, "b")
    put(store, "install", BACKGROUND)
    assert [claim_next(store), claim_next(store), claim_next(store)] == ["a", "install", None]
    end(store, "a")
    assert claim_next(store) == "b"


def test_a_measuring_job_runs_alone_and_is_not_starved(store: Store) -> None:
    put(store, "a")
    put(store, "measure", WHOLE)
    put(store, "b", BACKGROUND)
    assert [claim_next(store), claim_next(store)] == ["a", None]
    end(store, "a")
    assert [claim_next(store), claim_next(store)] == ["measure", None]
    end(store, "measure")
    assert claim_next(store) == "b"


@pytest.mark.parametrize("before", JobState)
def test_only_legal_transitions_are_made(store: Store, before: JobState) -> None:
    for after in JobState:
        name = f"{before}-{after}"
        with store.session() as session:
            session.add(JobRow(id=name, kind="optimize", state=before, title="a", owner="t", spec="{}"))
        with store.session() as session:
            lease = leases.read_lease(queue.get(session, name))
            if after in TRANSITIONS[before]:
                leases.move(session, lease, after)
            else:
                with pytest.raises(NotNow):
                    leases.move(session, lease, after)
            row = queue.get(session, name)
            assert row.state == (after if after in TRANSITIONS[before] else before)
            assert (row.finished_at is not None) == (after in TRANSITIONS[before] and after in TERMINAL)


def test_events_bring_the_summary_up_to_date_and_keep_their_order(store: Store) -> None:
    put(store, "a")
    with store.session() as session:
        history.append(session, "a", [Event(kind="phase", phase="load", message="Loading", progress=0.1, eta_s=9.0)])
        history.append(
            session,
            "a",
            [Event(kind="progress", phase="load", progress=0.5, eta_s=5.0), Event(kind="note", message="Hm")],
        )
    with store.read() as session:
        row = queue.get(session, "a")
        assert (row.phase, row.progress, row.eta_s, row.message) == ("load", 0.5, 5.0, "Hm")
        assert [seq for seq, _ in history.list_events(session, "a")] == [1, 2, 3]
        assert [seq for seq, _ in history.list_events(session, "a", after=2)] == [3]
        assert row.created_at.tzinfo is not None


def test_an_unknown_job_is_told_by_its_id(store: Store) -> None:
    with store.read() as session, pytest.raises(NotFound, match="j-nothing"):
        queue.get(session, "j-nothing")


def test_two_threads_may_migrate_two_homes_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda number: open_store(Settings(home=tmp_path / str(number))), range(8)))
    assert [version(store) for store in opened] == [HEAD] * 8


def version(store: Store) -> str:
    with store.read() as session:
        return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar())


def test_a_job_behind_many_that_must_wait_is_seen(store: Store) -> None:
    put(store, "running")
    assert claim_next(store) == "running"
    for number in range(60):
        put(store, f"waits-{number}")
    put(store, "install", BACKGROUND)
    assert claim_next(store) == "install"


def test_a_list_of_jobs_is_one_statement_that_reads_no_specification(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    with home.store.session() as session:
        for number in range(50):
            session.add(
                JobRow(id=f"j-{number:05}", kind="optimize", state="succeeded", title="t", owner="t", spec="x" * 4000)
            )
    statements = list[str]()
    event.listen(home.store.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    assert len(jobs.listing(home, limit=50)) == 50
    (only,) = [one for one in statements if "FROM jobs" in one]
    assert "jobs.title" in only and "jobs.spec" not in only


def test_a_home_of_the_schema_before_keeps_its_jobs(tmp_path: Path) -> None:
    from alembic import command

    settings = Settings(home=tmp_path)
    command.upgrade(alembic_config(home.prepare(settings)), "0008")
    with sqlite3.connect(tmp_path / home.DATABASE) as connection:
        names = ", ".join(REQUIRED)
        connection.execute(
            f"INSERT INTO jobs ({names}) VALUES ({', '.join('?' * len(REQUIRED))})", list(REQUIRED.values())
        )
    opened = open_store(settings)
    assert version(opened) == HEAD
    with opened.read() as session:
        assert history.count_jobs(session, history.JobFilter(owner="t")) == 1


def test_one_persons_jobs_are_counted_and_listed_without_reading_everybodys(tmp_path: Path) -> None:
    opened = open_home(tmp_path).store
    request = list[tuple[str, Any]]()
    event.listen(opened.engine, "before_cursor_execute", lambda *call: request.append((call[2], call[3])))
    mine = history.JobFilter(owner="t")
    with opened.read() as session:
        history.count_jobs(session, mine)
        history.list_jobs(session, mine)
    with opened.engine.connect() as connection:
        plans = [
            [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
            for statement, values in list(request)
            if "FROM jobs" in statement
        ]
    counted, listed = map(" ".join, plans)
    assert "COVERING INDEX ix_jobs_owner_created" in counted
    assert "INDEX ix_jobs_owner_created" in listed and "TEMP B-TREE FOR ORDER BY" not in listed, listed


def test_the_line_of_a_job_being_cancelled_promises_no_time_and_has_no_stray_comma(
    tmp_path: Path,
) -> None:
    home = open_home(tmp_path)
    put(home.store, "j-1")
    with home.store.session() as session:
        assert leases.claim(session, queue.get(session, "j-1"), SUPERVISOR)
        history.append(session, "j-1", [Event(kind="phase", phase="load", message="Loading", progress=0.5, eta_s=9.0)])
    assert jobs.show(home, "j-1").words == "j-1: starting, Loading, 50%, about 9 s left"
    assert jobs.cancel(home, "j-1", "ann").words.endswith(": starting, Cancellation requested by ann, 50%")
