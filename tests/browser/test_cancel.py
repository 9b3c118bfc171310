"""A person thinks better of it while the servers start: the job ends as cancelled and nothing of it is left."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from backend.domain.jobs.jobs import JobState
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from tests.browser.running import Studio
from tests.browser.visit import visiting
from tests.held_workers import hold_once, release_once_cancelled
from tests.homes import processes_of, until_ended
from tests.live_processes import answer, command

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
PATIENCE_MS = 120_000


def loads(studio: Studio, job_id: str) -> bool:
    """A server of vLLM is being started."""
    servers = [each for each in processes_of(studio.workspace) if "vllm" in " ".join(command(each))]
    return jobs.show(studio.workspace, job_id).phase == "start" and servers != []


@pytest.mark.campaign
def test_cancel_while_the_server_is_loading(chromium: Browser, studio: Studio) -> None:
    known = len(evaluations.listing(studio.workspace))
    with visiting(chromium, studio.url) as visit:
        visit.open("/evaluate?variants=starter")
        visit.button("Evaluate").click()
        visit.page.wait_for_url(re.compile(r"[?&]job=j-"))
        visit.link("Phases, log and resources")
        visit.heading("Evaluate starter")
        job_id = visit.page.url.partition("id=")[2]
        worker = hold_once(studio.workspace, job_id, lambda: loads(studio, job_id))
        expect(visit.main.get_by_test_id("stProgress")).to_contain_text("Starting")
        visit.button("Cancel").click()
        visit.page.get_by_role("button", name="Yes, cancel it").click()
        release_once_cancelled(worker)
        expect(visit.main.get_by_test_id("stCaptionContainer").first).to_contain_text("cancelled", timeout=PATIENCE_MS)
        expect(visit.button("Retry")).to_be_visible()
    assert until_ended(studio.workspace, job_id).state is JobState.CANCELLED
    marks = [answer(each.environ, {}) for each in processes_of(studio.workspace)]
    assert [mark for mark in marks if job_id in str(mark)] == []
    assert not (studio.workspace.settings.jobs / job_id / "1" / "work").exists()
    assert len(evaluations.listing(studio.workspace)) == known
