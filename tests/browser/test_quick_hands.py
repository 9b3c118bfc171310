"""A person quicker than the studio: what was typed a moment before the click counts, and two clicks are one job."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from backend.service.jobs import jobs
from tests.browser.running import Studio
from tests.browser.visit import visiting
from tests.homes import until_ended

VALID = "Valid for this model on this machine"


def test_a_double_click_on_optimize_is_one_job(chromium: Browser, studio: Studio) -> None:
    before = {job.id for job in jobs.listing(studio.workspace)}
    with visiting(chromium, studio.url) as visit:
        visit.open("/build?model=starter&recipe=ngram")
        expect(visit.main.get_by_text(VALID)).to_be_visible()
        visit.button("Optimize").dblclick()
        visit.heading("Optimize starter with ngram")
    ids = [job.id for job in jobs.listing(studio.workspace) if job.id not in before]
    assert len(ids) == 1
    assert until_ended(studio.workspace, ids[0]).error is None


def test_the_recipe_that_is_submitted_is_the_one_on_the_screen(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open("/build?model=starter&recipe=ngram")
        expect(visit.main.get_by_text(VALID)).to_be_visible()
        visit.drawn()  # a field that is drawn anew forgets what was typed meanwhile
        visit.field("Draft tokens").fill("2")
        visit.button("Optimize").click()  # which takes the field's focus, and only then the studio hears of the 2
        visit.heading("Optimize starter with n-gram")  # no longer the bundled recipe, so it is called by its steps
        job_id = jobs.listing(studio.workspace)[0].id
        submitted = jobs.specification(studio.workspace, job_id)["recipe"]
        assert submitted["name"] == "n-gram" and submitted["steps"][0]["speculate"]["tokens"] == 2
    assert until_ended(studio.workspace, job_id).error is None


def test_a_message_lies_over_no_button_beside_the_title(chromium: Browser, studio: Studio) -> None:
    """A message stays while the pointer is on it, so that what it lies over could not be clicked."""
    with visiting(chromium, studio.url) as visit:
        visit.open("/tune?model=starter")
        visit.button("Find the best stack").click()
        visit.page.wait_for_url(re.compile(r"[?&]id=t-"))
        visit.button("Stop").click()
        expect(visit.page.get_by_test_id("stToast")).to_be_visible()
        visit.button("New search").click()
        expect(visit.button("Find the best stack")).to_be_visible()


@pytest.mark.vllm
def test_the_price_and_load_that_are_measured_are_those_on_the_screen(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open("/evaluate?variants=starter")
        expect(visit.button("Evaluate")).to_be_enabled()
        visit.field("Requests per run").fill("9")
        visit.field("Price per hour (USD)").fill("1.5")
        visit.button("Evaluate").click()
        visit.page.wait_for_url(re.compile(r"[?&]job=j-"))
        job_id = visit.page.url.partition("job=")[2]
        visit.button("Cancel").click()
        visit.page.get_by_role("button", name="Yes, cancel it").click()
        options = jobs.specification(studio.workspace, job_id)["options"]
        assert (options["requests"], options["price_per_hour"]) == (9, 1.5)
        assert until_ended(studio.workspace, job_id).state == "cancelled"
