"""Every page in both themes and at both widths, empty and with a measured model: no complaint, nothing cut off,
accessible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import artifacts
from tests.browser.accessibility import violations
from tests.browser.places import PAGES, SHOWING, plain, showing
from tests.browser.running import Studio
from tests.browser.visit import HEIGHT, WIDTHS, Visit, visiting

Window = Callable[[str], Visit]


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Iterator[Window]:
    """One window a studio, which goes from page to page as a person's does."""
    with ExitStack() as stack:

        @cache
        def open_visit(url: str) -> Visit:
            return stack.enter_context(visiting(chromium, url))

        yield open_visit


def look_at(visit: Visit, path: str, opened_at: int, name: str, screenshots: Path | None) -> None:
    """Opened at that width in the theme that the window has, then seen in the others; the window keeps the last
    theme."""
    visit.page.set_viewport_size({"width": opened_at, "height": HEIGHT})
    visit.open(path)
    for check in visit.appearances(every=screenshots is not None):
        visit.photograph(screenshots, f"{name}-{check}.png")
        expect(visit.page.get_by_test_id("stException")).to_have_count(0)
        assert visit.overflow() == 0
        assert violations(visit.page) == []
        assert visit.heard() == []


@pytest.mark.parametrize(("page", "opened_at"), list(zip(PAGES, cycle(WIDTHS))))
def test_a_page_of_an_empty_home(
    window: Window, empty_studio: Studio, screenshots: Path | None, page: str, opened_at: int
) -> None:
    look_at(window(empty_studio.url), plain(page), opened_at, f"empty-{page}", screenshots)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("page", "opened_at"), list(zip([*PAGES, *SHOWING], cycle(reversed(WIDTHS)))))
def test_a_page_with_a_measured_model(
    window: Window, studio: Studio, measured: EvaluationView, screenshots: Path | None, page: str, opened_at: int
) -> None:
    made_by = artifacts.show(studio.workspace, measured.document.variants[1].variant.source).job_id
    path = plain(page) if page in PAGES else showing(page, measured, made_by)
    look_at(window(studio.url), path, opened_at, page, screenshots)
