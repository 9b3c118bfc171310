"""Jobs that yield: they never change what a person's own job gets, and they start when nothing else wants to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.jobs.jobs import JobState
from backend.store import leases, queue
from backend.store.database import Store
from backend.store.tables import JobRow, SupervisorRow

SUPERVISOR = SupervisorRow(id="s-1", host="one", home="/a", pid=1, process_started="")
LANES = ("accelerator", "background")


def job(name: str, *, yields: bool = False, exclusive: bool = False, lane: str = "accelerator") -> JobRow:
    return JobRow(
        id=name, kind="optimize", state=JobState.QUEUED, title=name, owner="t", spec="{}", yields=yields, exclusive=exclusive,
        lane=lane,
    )  # fmt: skip


shapes = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from(LANES)), max_size=6)


def rows(shape: Sequence[tuple[bool, bool, str]], prefix: str) -> list[JobRow]:
    return [job(f"{prefix}{n}", yields=y, exclusive=e, lane=lane) for n, (y, e, lane) in enumerate(shape)]


def in_order(queued: Sequence[JobRow]) -> list[JobRow]:
    return sorted(queued, key=lambda row: row.yields)


def run(queued: Sequence[JobRow]) -> list[JobRow]:
    """What is live once nothing more may start."""
    live: list[JobRow] = []
    waiting = in_order(queued)
    while (chosen := queue.choose(live, waiting)) is not None:
        live.append(chosen)
        waiting.remove(chosen)
    return live


@given(shapes, shapes)
def test_a_job_that_yields_never_changes_which_of_ones_own_jobs_starts(first: list, then: list) -> None:
    live, queued = run(rows(first, "live")), in_order(rows(then, "queued"))
    own = [row for row in queued if not row.yields]
    alone = queue.choose([row for row in live if not row.yields], own)
    leaving = queue.in_the_way(live, queued)
    assert all(row.yields for row in leaving) and (alone is not None or leaving == [])
    chosen = queue.choose([row for row in live if row not in leaving], queued)
    if own:
        assert chosen is alone


@given(shapes)
def test_what_runs_together_is_one_a_lane_or_one_that_measures(shape: list) -> None:
    live = run(rows(shape, "j"))
    assert len({row.lane for row in live}) == len(live)
    assert len(live) == 1 or not any(row.exclusive for row in live)


@given(shapes.filter(bool))
def test_nothing_is_starved_on_an_idle_machine(shape: list) -> None:
    queued = in_order(rows(shape, "j"))
    assert queue.choose([], queued) is queued[0]


@given(shapes, shapes)
def test_nothing_leaves_that_would_not_have_held_back_ones_own(first: list, then: list) -> None:
    live, queued = run(rows(first, "live")), in_order(rows(then, "queued"))
    own, staying = [row for row in queued if not row.yields], [row for row in live if not row.yields]
    for row in queue.in_the_way(live, queued):
        assert queue.choose([*staying, row], own) is not queue.choose(staying, own)


def put(store: Store, *found: JobRow) -> None:
    for row in found:
        with store.session() as session:
            queue.submit(session, row)


def claim_next(store: Store) -> str | None:
    with store.session() as session:
        row = queue.claimable(session, SUPERVISOR.host)
        held = leases.claim(session, row, SUPERVISOR) if row else None
        if row is None or held is None:
            return None
        leases.move(session, held, JobState.RUNNING)
        return row.id


def yielding(store: Store) -> list[str]:
    with store.read() as session:
        return [row.id for row in queue.yielding(session, SUPERVISOR.host)]


def test_the_demo_waits_behind_what_came_later_and_makes_room_for_it(store: Store) -> None:
    put(store, job("demo", yields=True), job("own"), job("install", lane="background"))
    assert claim_next(store) == "own"
    assert claim_next(store) == "install"
    assert claim_next(store) is None
    with store.session() as session:
        leases.move(session, leases.lease(queue.get(session, "own")), JobState.SUCCEEDED)
    assert claim_next(store) == "demo" and yielding(store) == []
    put(store, job("install-2", lane="background"))
    assert yielding(store) == []
    put(store, job("own-2"))
    assert yielding(store) == ["demo"]


def test_an_install_beside_the_demo_does_not_stop_it_but_a_measurement_of_the_demo_makes_room(store: Store) -> None:
    put(store, job("demo", yields=True))
    assert claim_next(store) == "demo"
    put(store, job("install", lane="background"))
    assert yielding(store) == [] and claim_next(store) == "install"
    with store.session() as session:
        for name in ("demo", "install"):
            leases.move(session, leases.lease(queue.get(session, name)), JobState.SUCCEEDED)
    put(store, job("measure", yields=True, exclusive=True))
    assert claim_next(store) == "measure"
    put(store, job("install-2", lane="background"))
    assert claim_next(store) is None and yielding(store) == ["measure"]


def test_made_room_it_is_queued_again_under_its_id(store: Store) -> None:
    put(
        store,
        job("demo", yields=True),
    )
    claim_next(store)
    with store.session() as session:
        queue.make_room(session, queue.get(session, "demo"))
    with store.session() as session:
        assert queue.is_making_room(queue.get(session, "demo"))
        assert queue.put_back(session, leases.lease(queue.get(session, "demo"))) is JobState.QUEUED
        row = queue.get(session, "demo")
        assert (row.state, row.attempt, row.yields, row.finished_at) == (JobState.QUEUED, 2, True, None)


def test_a_cancel_while_it_makes_room_is_a_cancel(store: Store) -> None:
    put(store, job("demo", yields=True))
    claim_next(store)
    with store.session() as session:
        queue.make_room(session, queue.get(session, "demo"))
    with store.session() as session:
        queue.request_cancel(session, "demo", "a person")
    with store.session() as session:
        assert not queue.is_making_room(queue.get(session, "demo"))
        assert queue.put_back(session, leases.lease(queue.get(session, "demo"))) == JobState.CANCELLED


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
        assert {key: found.id for key, found in queue.by_submission(session, ("first-1", "first-2")).items()} == {
            "first-1": "demo"
        }
