"""Steps that several walks through the studio take."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, expect

from tests.browser.visit import Visit


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
