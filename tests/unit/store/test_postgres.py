"""What only a server does: it drops connections, finds deadlocks, is restarted, and serves two homes that open it at
once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session

from backend.domain.jobs.jobs import JobState
from backend.settings import Settings
from backend.store import database, leases, queue
from backend.store.database import HEAD, Store, StoreUnavailable, open_store
from backend.store.tables import JobRow, SupervisorRow
from tests.homes import eventually
from tests.postgres import Postgres

pytestmark = pytest.mark.process


@pytest.fixture
def opened(postgres: Postgres, tmp_path: Path) -> Iterator[Store]:
    url = postgres.new()
    result = open_store(Settings(home=tmp_path, database_url=url))
    yield result
    result.engine.dispose()
    postgres.drop(url)


def job(name: str) -> JobRow:
    return JobRow(id=name, kind="install", state=JobState.QUEUED, title=name, owner="t", spec="{}")


def test_a_transaction_whose_connection_is_dropped_is_done_again(postgres: Postgres, opened: Store) -> None:
    tries = []

    def work(session: Session) -> str:
        queue.submit(session, job("a"))
        tries.append(1)
        if len(tries) == 1:
            postgres.end_sessions()
        return queue.get(session, "a").id

    assert opened.run(work) == "a" and len(tries) == 2
    with opened.read() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar() == 1


def test_a_deadlock_ends_with_both_changes_made(opened: Store) -> None:
    for name in ("a", "b"):
        opened.run(lambda session, name=name: queue.submit(session, job(name)))
    both = threading.Barrier(2, timeout=120)
    met = threading.local()

    def change(first: str, second: str, title: str) -> None:
        def work(session: Session) -> None:
            for number, name in enumerate((first, second)):
                session.execute(
                    text("UPDATE jobs SET title = title || :title WHERE id = :name"), {"title": title, "name": name}
                )
                if number == 0 and not getattr(met, "once", False):
                    met.once = True
                    both.wait()

        opened.run(work)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(change, "a", "b", "1"), pool.submit(change, "b", "a", "2")]:
            done.result()
    with opened.read() as session:
        assert [sorted(queue.get(session, name).title) for name in ("a", "b")] == [["1", "2", "a"], ["1", "2", "b"]]


def test_a_restart_of_the_server_is_waited_for(
    postgres: Postgres, opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.run(lambda session: queue.submit(session, job("a")))
    postgres.stop()
    with pytest.raises(StoreUnavailable, match="did not answer"), opened.session() as session:
        queue.get(session, "a")
    monkeypatch.setattr(database, "RETRIES_S", (0.05,) * 2000)
    threading.Timer(0.5, postgres.start).start()
    assert opened.run(lambda session: queue.get(session, "a").id) == "a"


def test_of_many_supervisors_of_one_host_one_gets_the_device(opened: Store) -> None:
    for number in range(4):
        opened.run(lambda session, name=f"j-{number}": queue.submit(session, job(name)))
    ready = threading.Barrier(4, timeout=120)

    def claim(number: int) -> bool:
        owner = SupervisorRow(id=f"s-{number}", host="one", home=f"/{number}", pid=1, process_started="")
        with opened.read() as session:
            row = queue.get(session, f"j-{number}")
        ready.wait()
        return opened.run(lambda session: leases.claim(session, row, owner)) is not None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, range(4))) == [False, False, False, True]


def test_two_homes_that_open_a_new_database_at_once_migrate_it_once(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.empty()
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(lambda n: open_store(Settings(home=tmp_path / str(n), database_url=url)), range(3)))
    for each in rows:
        with each.read() as session:
            assert session.execute(text("SELECT version_num FROM alembic_version")).scalar() == HEAD
        each.engine.dispose()
    postgres.drop(url)


def test_a_supervisor_whose_first_two_heartbeats_come_at_once_is_there_once(opened: Store) -> None:
    """The thread that beats and the rounds write the same row: neither fails because the other was first."""
    row = SupervisorRow(id="s-1", host="h", home="/h", pid=1, process_started="1")
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def second_waits() -> bool:
        with opened.read() as session:
            return session.execute(waits).scalar_one() == 1

    with ThreadPoolExecutor(1) as pool, Session(opened.engine) as first:
        leases.renew(first, row)
        first.flush()
        second = pool.submit(opened.run, lambda session: leases.renew(session, row))
        eventually("the second waits for the first", second_waits)
        first.commit()
        second.result(20)
    with opened.read() as session:
        assert session.execute(text("SELECT count(*) FROM supervisors")).scalar_one() == 1


def test_a_heartbeat_leaves_a_supervisor_draining(opened: Store) -> None:
    row = SupervisorRow(id="s-1", host="h", home="/h", pid=1, process_started="1")
    opened.run(lambda session: leases.renew(session, row))
    with Session(opened.engine) as session:
        session.execute(text("UPDATE supervisors SET draining = true"))
        session.commit()
    opened.run(lambda session: leases.renew(session, row))
    with opened.read() as session:
        assert session.execute(text("SELECT draining FROM supervisors")).scalar_one() is True
