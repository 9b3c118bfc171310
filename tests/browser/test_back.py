"""Back returns to what was there: seven walks that a person takes, one step of the history each; a page opens at its
top."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from backend.domain.jobs.jobs import JobState
from backend.store import queue
from tests import simulated, studio
from tests.browser.accessibility import violations
from tests.browser.running import Studio, running_studio
from tests.browser.visit import Visit, visiting


class Walk(NamedTuple):
    """From an address, by a step, to the page of that title."""

    start: str
    step: Callable[[Visit], None]
    title: str


@pytest.fixture(scope="module")
def finished_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Studio, str]]:
    """A studio with one job that made an artifact, and one evaluation; nothing of it was run. And the job's id."""
    with running_studio(tmp_path_factory.mktemp("back")) as running:
        workspace = running.workspace
        job = studio.optimize_job(workspace, JobState.SUCCEEDED)
        artifact = studio.artifact(workspace, job, studio.optimize_spec(workspace).model)
        with workspace.store.session() as session:
            queue.get(session, job.id).result = json.dumps({"artifact": artifact})
        studio.evaluation(workspace, simulated.evaluation(), "e-1")
        yield running, job.id


def walks(job: str) -> dict[str, Walk]:
    return {
        "job to Build": Walk(f"/job?id={job}", lambda visit: visit.link("Change the recipe"), "Build"),
        "evaluation to Build": Walk("/evaluate?id=e-1", lambda visit: visit.menu("Build"), "Build"),
        "Compare to Presets": Walk("/compare?ids=e-1", lambda visit: visit.menu("Presets"), "Presets"),
        "filtered catalog to model": Walk("/catalog?catalog_words=phi-2", lambda visit: visit.first_row(), "Phi-2"),
        "model to Build": Walk("/model?id=starter", lambda visit: visit.button("Optimize").click(), "Build"),
        "filtered jobs to job": Walk(
            "/jobs?jobs_words=w8a8", lambda visit: visit.link("Open"), "Optimize starter with w8a8"
        ),
        "evaluation to Compare": Walk("/evaluate?id=e-1", lambda visit: visit.link("Compare"), "Compare"),
    }


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost", 200)])
def test_the_running_studio_answers_under_its_own_names_alone(
    finished_studio: tuple[Studio, str], host: str, status: int
) -> None:
    connection = HTTPConnection("127.0.0.1", urlsplit(finished_studio[0].url).port, timeout=120)
    connection.request("GET", "/", headers={"Host": host})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("x-frame-options")) == (status, "DENY")
    connection.close()


@pytest.mark.parametrize(
    ("address", "last"),
    [("/build?model=starter", "recipe="), ("/build", "recipe="), ("/train", "model=starter")],
)
def test_a_page_that_completes_its_address_is_one_step_back(
    chromium: Browser, finished_studio: tuple[Studio, str], address: str, last: str
) -> None:
    """`last`: the parameter that the page writes last."""
    with visiting(chromium, finished_studio[0].url) as visit:
        visit.open("/catalog")
        visit.open(address)
        expect(visit.page).to_have_url(re.compile(last))
        visit.page.go_back()
        visit.heading("Catalog")
        expect(visit.page).to_have_url(f"{finished_studio[0].url}/catalog")


def test_a_past_evaluation_opens_at_its_top(chromium: Browser, finished_studio: tuple[Studio, str]) -> None:
    with visiting(chromium, finished_studio[0].url) as visit:
        visit.open("/evaluate")
        visit.first_row(-1)
        expect(visit.page).to_have_url(re.compile(r"id=e-1"))
        visit.heading("starter vs w8a8")
        visit.drawn()
        assert visit.main.evaluate("main => main.scrollTop") == 0


def test_the_load_goes_on_by_the_menu_and_by_links_and_back_undoes_it(
    chromium: Browser, finished_studio: tuple[Studio, str]
) -> None:
    with visiting(chromium, finished_studio[0].url) as visit:
        visit.open("/catalog")
        visit.page.get_by_role("button", name="Your load").click()
        users = visit.page.get_by_role("spinbutton", name="Users at once")
        users.fill("4")
        users.press("Enter")
        expect(visit.page).to_have_url(re.compile(r"/catalog\?load_users=4$"))
        expect(users).to_be_visible()
        visit.drawn()  # while the script runs, what is from before is pale and hard to read
        assert violations(visit.page) == [], "the fields that are open"
        visit.page.keyboard.press("Escape")
        visit.menu("Presets")
        expect(visit.page).to_have_url(re.compile(r"/presets\?load_users=4$"))
        expect(visit.main.get_by_text("Estimates are for 4 users")).to_be_visible()
        visit.page.go_back()
        visit.heading("Catalog")
        expect(visit.page).to_have_url(re.compile(r"/catalog\?load_users=4$"))
        visit.page.go_back()
        expect(visit.page.get_by_text("Chat, 622/250 tokens · 16 users")).to_be_visible()
        expect(visit.page).to_have_url(re.compile(r"/catalog$"))


@pytest.mark.campaign
def test_back_goes_through_the_pages_from_catalog_to_evaluate(
    chromium: Browser, finished_studio: tuple[Studio, str]
) -> None:
    running, _ = finished_studio
    steps: dict[str, Callable[[Visit], None]] = {
        "starter": lambda visit: visit.first_row(),
        "Build": lambda visit: visit.button("Optimize").click(),
        "Jobs": lambda visit: visit.menu("Jobs"),
        "Optimize starter with w8a8": lambda visit: visit.link("Open"),
        "Evaluate": lambda visit: visit.button("Evaluate against the original").click(),
    }
    with visiting(chromium, running.url) as visit:
        visit.open("/catalog?catalog_words=starter")
        passed = []
        for title, step in steps.items():
            passed.append((visit.main.get_by_role("heading", level=1).inner_text(), visit.page.url))
            step(visit)
            visit.heading(title)
            visit.drawn()
        for title, address in reversed(passed):
            visit.page.go_back()
            visit.heading(title)
            visit.drawn()
            expect(visit.page).to_have_url(address)


@pytest.mark.campaign
def test_back_returns_to_what_was_there(chromium: Browser, finished_studio: tuple[Studio, str]) -> None:
    running, job = finished_studio
    with visiting(chromium, running.url) as visit:
        for name, walk in walks(job).items():
            visit.open(walk.start)
            top, address = visit.main.get_by_role("heading", level=1).inner_text(), visit.page.url
            visit.main.evaluate("main => main.scrollTo(0, 600)")
            walk.step(visit)
            visit.heading(walk.title)
            visit.drawn()
            assert visit.main.evaluate("main => main.scrollTop") == 0, name
            visit.page.go_back()
            visit.heading(top)
            visit.drawn()
            expect(visit.page).to_have_url(address)
