"""Takes the pictures of README and docs from the recorded win; only with `--photograph`.

The words that are read off each page at that moment go into a list beside the pictures, by which
tests/ui/studio/test_pages_pictured.py notices that a page has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.domain.what_if.costs import WhatIf
from backend.service.evaluations import reports
from backend.service.studio import demo_export
from tests import pictures
from tests.browser.running import Studio, running_studio
from tests.browser.visit import WIDTHS, Visit, resize, visiting
from tests.pictures import EVALUATION, PICTURES, REPORT, Picture

pytestmark = [pytest.mark.timeout(900)]
STUDIO_WORDS = (
    "[data-testid=stSidebarNavLink]",
    "#stMain h1, #stMain h3",
    "#stMain [role=tab] p, #stMain button p, #stMain a p",
    "[data-testid=stWidgetLabel] p",
)
"""Titles, menu, tabs, buttons, links and labels of fields: what a person finds the way by."""
REPORT_WORDS = ("h1, h2, h3",)
VISIBLE = """selectors => [...document.querySelectorAll(selectors)].filter(element => {
    const box = element.getBoundingClientRect();
    return box.height > 0 && box.width > 0 && box.top >= 0 && box.bottom <= window.innerHeight;
}).map(element => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll("[data-testid=stIconMaterial], kbd").forEach(part => part.remove());
    return copy.textContent.trim();
}).filter(words => words)"""


def read_words(page: Page, selectors: tuple[str, ...]) -> list[str]:
    """The words within the window, each once, in the order of the page."""
    return list(dict.fromkeys(page.evaluate(VISIBLE, ", ".join(selectors))))


def photograph_page(visit: Visit, picture: Picture, file: Path) -> list[str]:
    """Take the picture and return the words in it."""
    visit.page.set_viewport_size({"width": WIDTHS[0], "height": picture.height})
    visit.open(f"/{'' if picture.page == 'home' else picture.page}?{urlencode(picture.query)}")
    expect(visit.page.get_by_test_id("stException")).to_have_count(0)
    visit.page.wait_for_timeout(3000)  # tables and charts slide into their place
    visit.drawn()
    visit.page.screenshot(path=file)
    return read_words(visit.page, STUDIO_WORDS)


def photograph_report(browser: Browser, folder: Path, file: Path) -> list[str]:
    """The report of the recorded win, written by today's code."""
    shown = demo_export.seed(folder)
    document = folder / "report.html"
    document.write_bytes(reports.write_page(shown, EVALUATION, WhatIf()))
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 800}, offline=True)
    page = context.new_page()
    page.goto(document.as_uri())
    expect(page.locator(".plot").first.locator(".main-svg").first).to_be_visible()
    resize(page, WIDTHS[0], ".plot")
    page.screenshot(path=file)
    words = read_words(page, REPORT_WORDS)
    context.close()
    return words


@pytest.fixture
def studios(tmp_path: Path) -> Iterator[dict[bool, Studio]]:
    """A studio that shows the recorded win, and one in which nothing was done."""
    with ExitStack() as stack:
        yield {
            recorded: stack.enter_context(running_studio(tmp_path / name, *options))
            for recorded, name, options in ((True, "recorded", ("--demo",)), (False, "empty", ()))
        }


def test_pictures_are_taken_with_their_words(
    request: pytest.FixtureRequest, chromium: Browser, screenshots: Path | None, tmp_path: Path
) -> None:
    if screenshots is None:
        pytest.skip("pictures are taken with --photograph")
    studios: dict[bool, Studio] = request.getfixturevalue("studios")
    words = {}
    for name, picture in PICTURES.items():
        with visiting(chromium, studios[picture.recorded].url) as visit:
            words[name] = photograph_page(visit, picture, pictures.FOLDER / f"{name}.png")
    words[REPORT] = photograph_report(chromium, tmp_path / "shown", pictures.FOLDER / f"{REPORT}.png")
    pictures.write_manifest(words)
