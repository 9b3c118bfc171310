"""The main job by clicks alone: from the catalog to a measured verdict, a comparison, and a report on disk.

It measures one load; test_evaluation_by_clicks.py has several.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from backend.domain.jobs.jobs import JobKind, JobState
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from tests.browser.form_steps import LONG_MS, chat_beside, optimize_starter, query_value, read_offline
from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting
from tests.held_workers import hold_once, release

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
STREAMS, REPEATS = 1, 5


def evaluate(visit: Visit, studio: Studio) -> str:
    """Job -> Evaluate -> live points, refreshed in the middle -> verdict; the evaluation's id."""
    visit.button("Evaluate against the original").click()
    visit.heading("Evaluate")
    visit.drawn()
    for words, value in (("Concurrency (streams)", str(STREAMS)), ("Longest answer (tokens)", "16")):
        visit.fill(words, value)
    visit.fill("Requests per run", "4")
    visit.fill("Price per hour (USD)", "1.5")
    expect(visit.main.get_by_text(f"2 variants x 1 level x {REPEATS} repeats = 10 runs")).to_be_visible()
    visit.button("Evaluate").dblclick()
    visit.page.wait_for_url(re.compile(r"[?&]job=j-"))
    job_id = query_value(visit, "job")
    some_runs = visit.main.get_by_text(re.compile(r"^[1-9]\d* runs? so far\. Approximate"))
    worker = hold_once(
        studio.workspace, job_id, lambda: bool(evaluations.read_progress_points(studio.workspace, job_id))
    )
    expect(some_runs).to_be_visible(timeout=LONG_MS)
    visit.reload()
    assert jobs.show(studio.workspace, job_id).state is JobState.RUNNING
    expect(some_runs).to_be_visible()
    release(worker)
    visit.page.wait_for_url(re.compile(r"[?&]id=e-"), timeout=LONG_MS)
    visit.drawn()
    return query_value(visit, "id")


def compare(visit: Visit, evaluation: str) -> None:
    """Evaluate -> Compare; another price, which the address keeps."""
    visit.link("Compare")
    visit.heading("Compare")
    visit.drawn()
    price = "Price per hour (USD)"
    cheapest = visit.main.get_by_text(re.compile(r"the cheapest(?: here)?: "))
    before = cheapest.inner_text()
    visit.fill(price, "3")
    visit.page.wait_for_url(re.compile(r"[?&]prices=3(&|$)"))
    expect(cheapest).not_to_have_text(before)
    after = cheapest.inner_text()
    visit.reload()
    expect(visit.field(price)).to_have_value("3.0000")
    expect(cheapest).to_have_text(after)


def test_from_the_catalog_to_a_report_on_disk(chromium: Browser, studio: Studio, tmp_path: Path) -> None:
    workspace, report = studio.workspace, tmp_path / "report.html"
    before = jobs.count(workspace)
    with visiting(chromium, studio.url) as visit:
        optimize_job = optimize_starter(visit, lambda: visit.button("Lower cost").click(), "w8a8")
        chat_beside(visit)
        evaluation = evaluate(visit, studio)
        expect(visit.main.get_by_text(re.compile(r"^.*At 1 stream "))).to_have_count(1)
        visit.main.get_by_role("tab", name="Conditions").click()
        expect(visit.main.get_by_text(re.compile(r"^Measured 20\d\d-"))).to_be_visible()
        compare(visit, evaluation)
        with visit.page.expect_download() as saving:
            visit.button("Report (HTML)").click()
        saving.value.save_as(report)
        with visiting(chromium, studio.url) as friend:
            friend.open(visit.page.url.removeprefix(studio.url))
            expect(friend.field("Price per hour (USD)")).to_have_value("3.0000")
    read_offline(chromium, report)
    # One double click, one job: each of the two buttons made exactly one, and the chat one.
    assert jobs.count(workspace) == before + 3
    view = evaluations.show(workspace, evaluation)
    assert [level.concurrency for level in view.document.variants[1].levels] == [STREAMS]
    assert artifacts.show(workspace, view.document.variants[1].variant.source).job_id == optimize_job
    assert {jobs.show(workspace, job).kind for job in (optimize_job, view.job_id)} == {
        JobKind.OPTIMIZE,
        JobKind.EVALUATE,
    }
