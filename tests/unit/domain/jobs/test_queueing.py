"""What starts beside what, in which order, and why another waits: for all claims, live jobs and queues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.jobs import queueing
from backend.domain.jobs.claims import BACKGROUND, Capacity, Claim, allocate, find_shortages, fits, make_grant
from backend.domain.jobs.queueing import QueueEntry
from backend.domain.jobs.terms import WORKING_DAY_S, Priority, queue_rank
from backend.domain.machine.device import GIB

HOST = Capacity(cores=4, memory_bytes=16 * GIB, gpus=2, disk_bytes=10**9)
CLAIMS = st.one_of(
    st.just(Claim(whole=True)),
    st.just(Claim(background=True, cores=0, gpus=())),
    st.just(Claim(installing=True, cores=0, gpus=())),
    st.builds(
        Claim,
        cores=st.none() | st.integers(1, 4),
        gpus=st.sampled_from([(), (0,), (1,), (0, 1), None]),
        memory_bytes=st.integers(0, 16).map(lambda number: number * GIB),
        disk_bytes=st.sampled_from([0, 10**8]),
    ),
)
shapes = st.lists(st.tuples(CLAIMS, st.booleans()), max_size=6)
Shape = Sequence[tuple[Claim, bool]]


def entries(shape: Shape, prefix: str, rank: float = 0.0) -> list[QueueEntry]:
    queue_entries = [QueueEntry(f"{prefix}{n}", claim, rank + n, yields) for n, (claim, yields) in enumerate(shape)]
    return sorted(queue_entries, key=lambda each: each.place)


def run(queued: Sequence[QueueEntry]) -> list[QueueEntry]:
    """What is live once nothing more may start."""
    live: list[QueueEntry] = []
    waiting = list(queued)
    while (chosen := queueing.choose_next(live, waiting, HOST)) is not None:
        live.append(chosen)
        waiting.remove(chosen)
    return live


def claims(queue_entries: Sequence[QueueEntry]) -> list[Claim]:
    return [each.claim for each in queue_entries]


@given(shapes, shapes)
def test_a_job_that_yields_never_changes_which_of_ones_own_jobs_starts(first: Shape, then: Shape) -> None:
    live, queued = run(entries(first, "live")), entries(then, "queued", 100.0)
    own = [each for each in queued if not each.yields]
    alone = queueing.choose_next([each for each in live if not each.yields], own, HOST)
    leaving = queueing.choose_to_stop(live, queued, HOST)
    assert all(each.yields for each in leaving) and (alone is not None or leaving == [])
    if own:
        assert queueing.choose_next([each for each in live if each not in leaving], queued, HOST) is alone


@given(shapes, shapes)
def test_nothing_leaves_where_ones_own_can_start_beside_it(first: Shape, then: Shape) -> None:
    live, queued = run(entries(first, "live")), entries(then, "queued", 100.0)
    own = [each for each in queued if not each.yields]
    required = queueing.choose_next([each for each in live if not each.yields], own, HOST)
    if required is not None and fits([required.claim, *claims(live)], HOST):
        assert queueing.choose_to_stop(live, queued, HOST) == []


@given(shapes)
def test_what_runs_together_fits_and_what_measures_is_alone(shape: Shape) -> None:
    live = run(entries(shape, "j"))
    assert fits(claims(live), HOST)
    assert len(live) == 1 or not any(each.claim.whole for each in live)


@given(shapes)
def test_what_fits_together_is_given_units_of_its_own(shape: Shape) -> None:
    used: list[str] = []
    for each in run(entries(shape, "j")):
        allocation = allocate(each.claim, HOST, used)
        assert allocation is not None and not set(allocation) & set(used)
        used += allocation


@given(shapes)
def test_on_an_idle_machine_the_first_starts(shape: Shape) -> None:
    queued = entries(shape, "j")
    assert queueing.choose_next([], queued, HOST) is (queued[0] if queued else None)


@given(shapes, shapes.filter(bool))
def test_the_first_that_waits_is_held_back_by_none_that_start_after_it(first: Shape, then: Shape) -> None:
    """However many start meanwhile: once those before it have ended, it starts."""
    live = [each for each in run(entries(first, "live")) if not each.yields]
    queued = [each for each in entries(then, "queued", 100.0) if not each.yields]
    started, waiting = list(live), list(queued)
    while (chosen := queueing.choose_next(started, waiting, HOST)) is not None:
        started.append(chosen)
        waiting.remove(chosen)
    if waiting:
        behind = [each for each in started if each.place > waiting[0].place]
        assert fits([waiting[0].claim, *claims(behind)], HOST)


@given(shapes, shapes)
def test_each_that_waits_says_for_whom_and_each_that_may_start_says_nothing(first: Shape, then: Shape) -> None:
    live, queued = run(entries(first, "live")), entries(then, "queued", 100.0)
    chosen = queueing.choose_next(live, queued, HOST)
    for number, each in enumerate(queued):
        explanation = queueing.explain_wait(each, live, queued[:number], HOST)
        if each is chosen:
            assert explanation is None
            return
        assert explanation is not None and explanation.sentence.endswith(".")
        assert set(explanation.on) <= {one.id for one in [*live, *queued[:number]]}
        assert explanation.on or each.yields


SMALL, LARGE = Claim(cores=1, gpus=(), memory_bytes=4 * GIB), Claim(cores=3, gpus=(), memory_bytes=10 * GIB)


def test_two_that_fit_run_beside_each_other_and_two_that_do_not_wait() -> None:
    small, large = QueueEntry("small", SMALL, 1.0), QueueEntry("large", LARGE, 2.0)
    assert queueing.choose_next([small], [large], HOST) is large
    assert queueing.choose_next([large], [QueueEntry("large-2", LARGE, 3.0)], HOST) is None


@pytest.mark.parametrize(
    ("claim", "live", "sentence"),
    [
        (LARGE, [LARGE], "It waits for 3 cores (1 free) and 10 GiB of memory (6 free): live0 has it."),
        (Claim(cores=1, gpus=()), [Claim(cores=4, gpus=())], "It waits for 1 core (0 free): live0 has it."),
        (Claim(), [SMALL, SMALL], "It waits for every core: live0 and live1 have it."),
        (Claim(cores=1, gpus=(0,)), [Claim(cores=1, gpus=(0, 1))], "It waits for GPU 0: live0 has it."),
        (Claim(whole=True), [SMALL], "It waits for the machine to itself, since it measures: live0 has it."),
        (SMALL, [Claim(whole=True)], "It waits for the machine, which a measurement has to itself: live0 has it."),
        (Claim(background=True, cores=0, gpus=()), [Claim(background=True, cores=0, gpus=())], "place of downloads"),
        (
            Claim(installing=True, cores=0, gpus=()),
            [Claim(installing=True, cores=0, gpus=())],
            "place of installations",
        ),
        (Claim(memory_bytes=64 * GIB), [], "It needs every core and 64 GiB of memory"),
        (Claim(gpus=(5,)), [], "the machine has 4 cores, 16 GiB of memory, 2 GPUs."),
        (Claim(disk_bytes=3 * 10**9), [], "It needs 3 GB of disk and 1 GB are free: free some."),
    ],
)
def test_a_job_that_waits_says_for_what(claim: Claim, live: list[Claim], sentence: str) -> None:
    running = [QueueEntry(f"live{number}", each, float(number)) for number, each in enumerate(live)]
    explanation = queueing.explain_wait(QueueEntry("j", claim, 9.0), running, [], HOST)
    assert explanation is not None and sentence in explanation.sentence


def test_a_small_one_behind_a_large_one_waits_only_where_it_would_hold_that_up() -> None:
    running, large = QueueEntry("running", LARGE, 0.0), QueueEntry("large", LARGE, 1.0)
    blocked = QueueEntry("blocked", SMALL.model_copy(update={"memory_bytes": 7 * GIB}), 2.0)
    assert queueing.choose_next([running], [large, QueueEntry("small", SMALL, 2.0)], HOST) is not None
    assert queueing.choose_next([QueueEntry("r", SMALL, 0.0)], [large._replace(claim=Claim()), blocked], HOST) is None
    explanation = queueing.explain_wait(blocked, [QueueEntry("r", SMALL, 0.0)], [large._replace(claim=Claim())], HOST)
    assert explanation is not None and explanation.on == ("large",) and "came first" in explanation.sentence


def test_high_priority_goes_first_but_not_before_a_job_that_waits_a_working_day() -> None:
    at = 1_000_000.0
    assert queue_rank(at, Priority.HIGH) < queue_rank(at - WORKING_DAY_S + 1, Priority.NORMAL)
    assert queue_rank(at, Priority.HIGH) >= queue_rank(at - WORKING_DAY_S, Priority.NORMAL)
    assert queue_rank(at, Priority.LOW) > queue_rank(at + WORKING_DAY_S - 1, Priority.NORMAL)


def test_a_worker_keeps_to_what_it_was_granted() -> None:
    allocation = allocate(Claim(cores=2, gpus=(1,), memory_bytes=GIB), HOST, ["core0", "memory0", BACKGROUND])
    assert allocation == ["core1", "core2", "memory1", "gpu1"]
    assert (make_grant(allocation, HOST).cores, make_grant(allocation, HOST).gpus) == ((1, 2), (1,))
    everything = allocate(Claim(), HOST, [])
    assert everything is not None
    assert (make_grant(everything, HOST).cores, make_grant(everything, HOST).gpus) == (None, (0, 1))
    assert allocate(Claim(cores=4, gpus=()), HOST, ["core0"]) is None
    assert find_shortages([Claim(gpus=(7,), cores=1)], HOST) == ["gpu7"]
