"""Jobs that yield: they never change what a person's own job gets, and they start when nothing else wants to."""

from __future__ import annotations

from backend.domain.jobs.claims import Capacity, Claim
from backend.domain.jobs.jobs import JobState
from backend.store import leases, queue
from backend.store.database import Store
from backend.store.tables import JobRow, SupervisorRow

SUPERVISOR = SupervisorRow(id="s-1", host="one", home="/a", pid=1, process_started="")
CAPACITY = Capacity()
ALL, BACKGROUND, WHOLE = Claim(), Claim(background=True, cores=0, gpus=()), Claim(whole=True)


def job(name: str, claim: Claim = ALL, *, yields: bool = False) -> JobRow:
    return JobRow(
        id=name,
        kind="optimize",
        state=JobState.QUEUED,
        title=name,
        owner="t",
        spec="{}",
        yields=yields,
        claim=claim.text,
    )


def put(store: Store, *result: JobRow) -> None:
    for row in result:
        with store.session() as session:
            queue.submit(session, row)


def claim_next(store: Store) -> str | None:
    with store.session() as session:
        row = queue.find_claimable(session, SUPERVISOR.host, CAPACITY)
        claimed = leases.claim(session, row, SUPERVISOR) if row else None
        if row is None or claimed is None:
            return None
        leases.move(session, claimed, JobState.RUNNING)
        return row.id


def yielding(store: Store) -> list[str]:
    with store.read() as session:
        return [row.id for row in queue.find_jobs_to_stop(session, SUPERVISOR.host, CAPACITY)]


def test_the_demo_waits_behind_what_came_later_and_makes_room_for_it(store: Store) -> None:
    put(store, job("demo", yields=True), job("own"), job("install", BACKGROUND))
    assert claim_next(store) == "own"
    assert claim_next(store) == "install"
    assert claim_next(store) is None
    with store.session() as session:
        leases.move(session, leases.read_lease(queue.get(session, "own")), JobState.SUCCEEDED)
    assert claim_next(store) == "demo" and yielding(store) == []
    put(store, job("install-2", BACKGROUND))
    assert yielding(store) == []
    put(store, job("own-2"))
    assert yielding(store) == ["demo"]


def test_an_install_does_not_stop_the_demo_but_a_measurement_of_it_makes_room(store: Store) -> None:
    put(store, job("demo", yields=True))
    assert claim_next(store) == "demo"
    put(store, job("install", BACKGROUND))
    assert yielding(store) == [] and claim_next(store) == "install"
    with store.session() as session:
        for name in ("demo", "install"):
            leases.move(session, leases.read_lease(queue.get(session, name)), JobState.SUCCEEDED)
    put(store, job("measure", WHOLE, yields=True))
    assert claim_next(store) == "measure"
    put(store, job("install-2", BACKGROUND))
    assert claim_next(store) is None and yielding(store) == ["measure"]


def test_moved_to_the_front_it_is_ones_own(store: Store) -> None:
    put(store, job("own"), job("demo", yields=True))
    with store.session() as session:
        queue.move_to_front(session, "demo")
    assert claim_next(store) == "demo" and yielding(store) == []


def test_jobs_are_found_by_their_submission(store: Store) -> None:
    row = job("demo")
    row.submission = "first-1"
    put(store, row, job("other"))
    with store.read() as session:
        assert {
            key: result.id for key, result in queue.find_by_submission(session, ("first-1", "first-2")).items()
        } == {"first-1": "demo"}
