"""Every page in both themes and at both widths, empty and with a measured model: no complaint, nothing cut off, accessible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from playwright.sync_api import Browser, expect

from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import artifacts
from tests.browser.accessibility import violations
from tests.browser.places import PAGES, SCREENSHOTS, SHOWING, plain, showing
from tests.browser.running import Studio
from tests.browser.visit import LOOKS, Theme, Visit, visiting

GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 26)"}
"""backgroundColor of .streamlit/config.toml."""


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Iterator[Callable[[str, Theme, int], Visit]]:
    """One window a studio and look, which goes from page to page as a person's does."""
    with ExitStack() as stack:

        @cache
        def of(url: str, theme: Theme, width: int) -> Visit:
            return stack.enter_context(visiting(chromium, url, theme, width))

        yield of


def look_at(visit: Visit, path: str, name: str, theme: Theme, width: int) -> None:
    visit.open(path)
    visit.photograph(SCREENSHOTS, f"{name}-{theme}-{width}.png")
    assert visit.page.get_by_test_id("stApp").evaluate("app => getComputedStyle(app).backgroundColor") == GROUNDS[theme]
    expect(visit.page.get_by_test_id("stException")).to_have_count(0)
    assert visit.overflow() == 0
    assert violations(visit.page) == []
    assert visit.heard() == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_a_page_of_an_empty_home(
    window: Callable[[str, Theme, int], Visit], empty_studio: Studio, page: str, theme: Theme, width: int
) -> None:
    look_at(window(empty_studio.url, theme, width), plain(page), f"empty-{page}", theme, width)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [*PAGES, *SHOWING])
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_a_page_with_a_measured_model(
    window: Callable[[str, Theme, int], Visit], studio: Studio, measured: EvaluationView, page: str, theme: Theme, width: int
) -> None:
    made_by = artifacts.show(studio.workspace, measured.document.variants[1].variant.source).job_id
    path = plain(page) if page in PAGES else showing(page, measured, made_by)
    look_at(window(studio.url, theme, width), path, page, theme, width)
