"""Jobs and Job on a job's life: what it waits for, its priority, what comes after it, what was tried, and Build's
second job."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from backend.domain.jobs.claims import Capacity
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import Event, JobState
from backend.domain.jobs.terms import Priority, Terms
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.store import leases, queue
from backend.store.tables import SupervisorRow
from tests import studio

pytestmark = pytest.mark.without_supervisor


def takes(home: Workspace, running: str | None = None, *, draining: bool = False) -> None:
    """A supervisor of two cores that has that job."""
    owner = SupervisorRow(
        id="s-1", host="one", home="/elsewhere", pid=1, process_started="", capacity=Capacity(cores=2).model_dump_json()
    )
    with home.store.session() as session:
        leases.renew(session, owner)
        if running is not None:
            claimed = leases.claim(session, queue.get(session, running), owner)
            assert claimed is not None
            leases.move(session, claimed, JobState.RUNNING)
        if draining:
            leases.drain(session, "one", "/elsewhere")


def labels(at: AppTest) -> list[str]:
    return [button.label for button in at.button]


def test_a_queued_job_says_for_what_it_waits_and_its_priority_can_be_changed(studio_home: Workspace) -> None:
    first, second = (studio.optimize_job(studio_home) for _ in range(2))
    takes(studio_home, first.id)
    at = studio.open_page("job", id=second.id)
    assert "It waits for every core" in at.info[0].value and "“Optimize starter with w8a8” has it." in at.info[0].value
    assert second.id not in at.info[0].value
    at.segmented_control(key=f"job_priority-{second.id}").set_value("high").run()
    studio.check(at)
    assert jobs.show(studio_home, second.id).terms.priority is Priority.HIGH
    listed = studio.says(studio.open_page("jobs"))
    assert "It waits for every core" in listed and "high priority" in listed


def test_a_job_that_begins_says_nothing_of_its_priority_unless_one_was_chosen(
    studio_home: Workspace,
) -> None:
    job = studio.optimize_job(studio_home)
    at, before = (studio.open_page("job", id=job.id) for _ in range(2))
    late = at._tree.get_widget_states()
    takes(studio_home, job.id)
    at.run()
    # a live part of the page as it was before brings the control's value again, which nobody has chosen
    studio.check(at._run(late))
    assert not at.toast
    # nothing of the page is where toasts are, since one of a live part would replace it
    assert not at._tree[2].children
    before.segmented_control(key=f"job_priority-{job.id}").set_value("high").run()
    studio.check(before)
    (toast,) = before.toast
    assert "no longer queued" in toast.value and toast.icon == ":material/info:"


def test_the_priority_control_follows_a_change_made_elsewhere(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home)
    at = studio.open_page("job", id=job.id)
    jobs.prioritize(studio_home, job.id, Priority.LOW)
    at.run()
    assert at.segmented_control(key=f"job_priority-{job.id}").value == "low"
    assert jobs.show(studio_home, job.id).terms.priority is Priority.LOW and not at.toast


def test_without_a_supervisor_and_with_a_drained_one_it_says_so(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home)
    assert "No supervisor is running" in studio.open_page("job", id=job.id).info[0].value
    takes(studio_home)
    assert "Next in queue." in studio.open_page("job", id=job.id).info[0].value
    takes(studio_home, draining=True)
    assert "Next in queue." not in studio.open_page("job", id=job.id).info[0].value


def test_a_job_that_comes_after_another_leads_to_it_and_back(studio_home: Workspace) -> None:
    first = studio.optimize_job(studio_home)
    second = jobs.submit(studio_home, studio.optimize_spec(studio_home), "The second", after=first.id)
    takes(studio_home)
    at = studio.open_page("job", id=second.id)
    assert f"After {first.id}" in labels(at)
    assert "It comes after “Optimize starter with w8a8”" in at.info[0].value
    at = studio.open_page("job", id=first.id)
    assert "Then The second" in labels(at)
    next(button for button in at.button if button.label == "Then The second").click().run()
    studio.check(at)
    assert at.title[0].value == "The second"


def started(number: int) -> Event:
    data = {"state": "running", "attempt": number, "place": f"process {number}"}
    return Event(kind="state", message=f"Started as process {number}, attempt {number}.", data=data)


def test_attempts_stand_there_with_the_cause_of_each_end(studio_home: Workspace) -> None:
    ended = {"state": "queued", "attempt": 1, "ending": str(Ending.LOST)}
    events = [
        started(1),
        Event(kind="state", message="The worker is gone and nobody saw it end: tried again in 5 s.", data=ended),
        started(2),
    ]
    job = studio.optimize_job(
        studio_home, JobState.RUNNING, events=events, attempt=2, terms=Terms(run_timeout_s=1800.0, retries=3).text
    )
    at = studio.open_page("job", id=job.id)
    table = next(each.value for each in at.dataframe if "Attempt" in each.value)
    assert list(table["Ended"]) == ["its worker was gone", "–"]
    text = studio.says(at)
    assert "tried again in 5 s" in text and "It runs at most 30 min, is tried again 3 times at most." in text


@pytest.mark.parametrize(("retries", "words"), [(0, "is not tried again"), (1, "is tried again 1 time at most")])
def test_no_retry_and_one_are_said_as_such(studio_home: Workspace, retries: int, words: str) -> None:
    job = studio.optimize_job(studio_home, JobState.FAILED, terms=Terms(retries=retries).text)
    assert f"It {words}." in studio.says(studio.open_page("job", id=job.id))


def test_a_job_that_was_put_aside_is_released_by_its_primary_button(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.LOST, aside=True, strikes=3, error="It was put aside.")
    at = studio.open_page("job", id=job.id)
    assert "put aside" in studio.says(at)
    primary = [button for button in at.button if button.proto.type == "primary"]
    assert [button.label for button in primary] == ["Release"]
    primary[0].click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).state is JobState.QUEUED


@pytest.mark.with_engines
def test_one_tick_on_build_submits_the_evaluation_too_and_a_double_click_both_once(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="w8a8")
    at.checkbox(key="build_then").check().run()
    at.text_input(key="build_run-limit").set_value("soon").run()
    assert at.button(key="build_optimize").disabled and any("no time such as" in error.value for error in at.error)
    at.text_input(key="build_run-limit").set_value("2h").run()
    at.button(key="build_optimize").click().run()
    studio.check(at)
    second, first = jobs.listing(studio_home)
    assert (first.kind, second.kind, second.after) == ("optimize", "evaluate", first.id)
    assert first.terms.run_timeout_s == second.terms.run_timeout_s == 7200.0
    assert [variant["source"] for variant in jobs.specification(studio_home, second.id)["variants"]] == [
        "starter",
        first.id,
    ]
    assert at.title[0].value == "Optimize starter with w8a8" and f"Then {second.title}" in labels(at)
