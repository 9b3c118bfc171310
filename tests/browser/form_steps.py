"""Steps that several walks through the studio take."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, expect

from tests.browser.visit import Visit

LONG_MS = 600_000
COUNT_CLICKS = "() => { window.clicks = 0; addEventListener('click', () => { window.clicks += 1 }, true) }"


def query_value(visit: Visit, name: str) -> str:
    """A parameter of the address."""
    return parse_qs(urlsplit(visit.page.url).query)[name][0]


def read_offline(browser: Browser, report: Path) -> None:
    """The report from the disk with the network off: verdicts and charts, and nothing asked for."""
    context = browser.new_context(offline=True)
    requests: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    expect(page.locator(".verdict").first).to_be_visible()  # whichever it is
    expect(page.locator(".plot .plot-container .main-svg").first).to_be_visible()
    expect(page.locator(".plot").filter(has_not=page.locator(".main-svg"))).to_have_count(0)
    assert {url.partition(":")[0] for url in requests} <= {"file", "data"}
    assert [url for url in requests if url.startswith("file:")] == [report.as_uri()]
    context.close()


def optimize_starter(visit: Visit, choose: Callable[[], None], result: str) -> str:
    """Catalog -> Model -> Build, where `choose` clicks the recipe -> Job, refreshed on the way; the job's id."""
    visit.open("/")
    visit.menu("Catalog")
    visit.first_row()
    visit.heading("starter")
    visit.button("Optimize").click()
    visit.heading("Build")
    choose()
    expect(visit.main.get_by_text("Valid for this model on this machine")).to_be_visible()
    visit.button("Optimize").dblclick()
    visit.heading(f"Optimize starter with {result}")
    visit.reload()
    visit.heading(f"Optimize starter with {result}")
    expect(visit.button("Evaluate against the original")).to_be_visible(timeout=LONG_MS)
    return query_value(visit, "id")


def chat_beside(visit: Visit) -> None:
    """Job -> Playground: a message is typed and answered by original and result, with two clicks; back to the job."""
    job_page = visit.page.url
    visit.page.evaluate(COUNT_CLICKS)
    visit.button("Chat: original beside result").click()
    visit.heading("Playground")
    prompt = visit.page.get_by_test_id("stChatInputTextArea")
    expect(prompt).to_be_enabled(timeout=LONG_MS)
    prompt.click()
    visit.page.keyboard.type("def read_lines(path):")
    visit.page.keyboard.press("Enter")
    expect(visit.main.get_by_text(re.compile("first token after"))).to_have_count(2, timeout=LONG_MS)
    assert visit.page.evaluate("window.clicks") == 2
    # An evaluation waits for servers that run.
    visit.button("Stop the servers").click()
    expect(visit.button("Start both again")).to_be_visible(timeout=LONG_MS)
    visit.open(job_page.removeprefix(visit.url))
