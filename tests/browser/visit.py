"""A browser window on the studio: opens pages, waits until they are drawn, and notes every complaint of the
browser's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, TimeoutError, expect

Theme = Literal["light", "dark"]
WIDTHS = (1280, 390)
"""Of the window, in pixels."""
OTHER: dict[Theme, Theme] = {"light": "dark", "dark": "light"}
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 26)"}
"""backgroundColor of .streamlit/config.toml."""
HEIGHT = 800
TALLEST = 6000
MOMENT_MS = 30_000

COUNT_RUNS = """app => {
    window.endedRuns = 0
    const ended = () => { if (app.dataset.testScriptState === "notRunning") window.endedRuns += 1 }
    new MutationObserver(ended).observe(app, {attributeFilter: ["data-test-script-state"]})
}"""
STILL = """charts => {
    const fits = [...document.querySelectorAll(charts)].every(chart => {
        const drawn = chart.querySelector(".main-svg")
        return drawn && Math.abs(drawn.clientWidth - chart.clientWidth) < 2
    })
    const moves = document.getAnimations().some(each => each.playState === "running")
    window.still = fits && !moves ? (window.still || 0) + 1 : 0
    return window.still > 2
}"""

WIDER = """() => {
    const parts = [document.documentElement, document.getElementById('stMain')]
    const wider = Math.max(0, ...parts.map(each => each.scrollWidth - each.clientWidth))
    window.kept = wider === window.wider ? (window.kept || 0) + 1 : 0
    window.wider = wider
    return wider === 0 && window.kept > 4
}"""
"""Tables follow a window some frames after it: what is right at one look is not yet what a person is left with."""

PROBED = re.compile(r"^http://localhost:\d+/[a-z_]+/_stcore/(health|host-config)$")
"""Where a page is opened by its own address, Streamlit's client first asks for its server below that address, is told
404 by design (streamlit/web/server/starlette/starlette_static_routes.py), and asks at the root 100 ms later. Only a
rewritten index.html could tell it where the server is."""


class Visit:
    """One window. `complaints` are console errors and uncaught exceptions, of all pages that it went to."""

    def __init__(self, page: Page, url: str, theme: Theme = "light") -> None:
        self.page, self.url, self.theme = page, url, theme
        self.complaints: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        where = message.location["url"]
        if message.type == "error" and not PROBED.match(where):
            self.complaints.append(f"{message.text} ({where})")

    def heard(self) -> list[str]:
        """The complaints since this was last asked."""
        results = [*self.complaints]
        self.complaints.clear()
        return results

    def open(self, path: str) -> None:
        """Go to a path of the studio and wait until the page is drawn."""
        self.page.goto(f"{self.url}{path}")
        self.drawn()

    def reload(self) -> None:
        self.page.reload()
        self.drawn()

    def drawn(self, timeout_ms: float | None = None) -> None:
        """The script has run, within `timeout_ms` or the usual time; no placeholder is left and every chart has its
        marks."""
        app = self.page.get_by_test_id("stApp")
        expect(app).to_have_attribute("data-test-script-state", "notRunning", timeout=timeout_ms)
        expect(self.main.get_by_role("heading", level=1)).to_be_visible()
        expect(self.page.get_by_test_id("stSkeleton")).to_have_count(0)
        charts = self.main.get_by_test_id("stPlotlyChart")
        expect(charts.filter(has_not=self.page.locator(".main-svg"))).to_have_count(0)

    def rerun(self, act: Callable[[], None]) -> None:
        """Act, and wait until the run of the script that this causes has ended. Until it begins, `drawn` finds the page
        of the run before."""
        self.page.get_by_test_id("stApp").evaluate(COUNT_RUNS)
        act()
        self.page.wait_for_function("window.endedRuns > 0")
        self.drawn()

    def still(self) -> None:
        """Wait until no chart changes and nothing slides any more."""
        _await_still(self.page, "[data-testid=stPlotlyChart]")

    def appearances(self, *, every: bool = False) -> Iterator[str]:
        """Brings the open page into both themes and both widths, beginning with those of the window; yields their
        names.

        Two of the four are enough to check: colours do not hang on the width, nor what fits on the theme. `every`:
        all four.
        """
        for number, theme in enumerate((self.theme, OTHER[self.theme])):
            self._become(theme)
            width = _width(self.page)
            for each in (
                sorted(WIDTHS, key=lambda other: other != width) if every else [_other(width) if number else width]
            ):
                resize(self.page, each, "[data-testid=stPlotlyChart]")
                yield f"{theme}-{each}"

    def _become(self, theme: Theme) -> None:
        """The page's colours follow the system at once, its charts with the next run of the script."""
        app = self.page.get_by_test_id("stApp")
        if theme != self.theme:
            self.theme = theme
            self.page.emulate_media(color_scheme=theme)
            self.rerun(lambda: self.page.keyboard.press("r"))
        expect(app).to_have_css("background-color", GROUNDS[theme])

    @property
    def main(self) -> Locator:
        """The page without the menu."""
        return self.page.locator("#stMain")

    def heading(self, words: str) -> None:
        """Wait for the page of that title."""
        expect(self.main.get_by_role("heading", level=1, name=words, exact=True)).to_be_visible()

    def menu(self, words: str) -> None:
        """Follow the menu on the left."""
        self.page.get_by_test_id("stSidebarNav").get_by_role("link", name=words).click()
        self.heading(words)
        self.drawn()

    def link(self, words: str | re.Pattern[str]) -> None:
        self.main.get_by_role("link", name=words).first.click()

    def first_row(self, table_number: int = 0) -> None:
        """Click the first cell of the first row of a table, by default the page's first, which is drawn on a canvas."""
        table = self.main.get_by_test_id("stDataFrame").nth(table_number)
        table.scroll_into_view_if_needed()
        box = table.bounding_box()
        assert box is not None
        self.page.mouse.click(box["x"] + 60, box["y"] + 53)

    def button(self, words: str) -> Locator:
        """By the words it begins with: Streamlit adds the shortcut to them."""
        return self.main.get_by_role("button", name=re.compile(rf"^{re.escape(words)}(?!\w)"))

    def action(self, words: str) -> Locator:
        """Open the page's menu of actions, which is drawn beside the page, and find one of them."""
        self.button("More").click()
        return self.page.get_by_test_id("stPopoverBody").get_by_role("button", name=words)

    def field(self, words: str) -> Locator:
        return self.main.get_by_label(words, exact=True)

    def fill(self, words: str, value: str) -> None:
        """Type into a field and leave it, as a person does."""
        self.field(words).fill(value)
        self.field(words).press("Tab")

    def overflow(self) -> int:
        """Pixels that the page is wider than the window, once that stays as it is; a page that is too wide is given a
        moment."""
        self.page.evaluate("window.kept = 0")
        with suppress(TimeoutError):
            self.page.wait_for_function(WIDER, polling=50, timeout=MOMENT_MS)
        return int(self.page.evaluate("window.wider"))

    def photograph(self, folder: Path | None, name: str) -> None:
        """`name` is the first screen; `whole/name` the page from top to bottom. Without a folder nothing is taken."""
        if folder is None:
            return
        (folder / "whole").mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / name)
        size = self.page.viewport_size
        assert size is not None
        height = int(self.page.evaluate("document.getElementById('stMain').scrollHeight"))
        self.page.set_viewport_size({"width": size["width"], "height": max(HEIGHT, min(height, TALLEST))})
        self.page.screenshot(path=folder / "whole" / name)
        self.page.set_viewport_size(size)


def _other(width: int) -> int:
    return next(each for each in WIDTHS if each != width)


def _width(page: Page) -> int:
    assert page.viewport_size is not None
    return page.viewport_size["width"]


def resize(page: Page, width: int, charts: str) -> None:
    """Make the window so wide, and wait until the elements that `charts` selects are filled again and nothing slides
    any more."""
    page.set_viewport_size({"width": width, "height": HEIGHT})
    _await_still(page, charts)


def _await_still(page: Page, charts: str) -> None:
    page.evaluate("window.still = 0")
    page.wait_for_function(STILL, arg=charts, polling=50)


@contextmanager
def visiting(browser: Browser, url: str, theme: Theme = "light", width: int = 1280) -> Iterator[Visit]:
    """A person of their own: nothing is shared with another window. No complaint may be left at the end."""
    viewport = {"width": width, "height": HEIGHT}
    context = browser.new_context(viewport=viewport, color_scheme=theme, accept_downloads=True)  # type: ignore[arg-type]
    try:
        visit = Visit(context.new_page(), url, theme)
        yield visit
        assert visit.heard() == []
    finally:
        context.close()
