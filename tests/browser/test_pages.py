"""Every page in both themes and at both widths, empty and with a measured model: no complaint, nothing cut off, accessible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import pytest
from playwright.sync_api import Browser

from backend.service import artifacts
from backend.service.evaluations import EvaluationView
from tests.browser.accessibility import violations
from tests.browser.places import PAGES, SCREENSHOTS, SHOWING, plain, showing
from tests.browser.running import Studio
from tests.browser.visit import Theme, Visit, visiting

LOOKS = [("light", 1280), ("light", 390), ("dark", 1280), ("dark", 390)]
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 26)"}
"""backgroundColor of .streamlit/config.toml."""


@pytest.fixture(scope="module")
def windows(chromium: Browser) -> Iterator[dict[tuple[str, str, int], Visit]]:
    """One window a studio and look, which goes from page to page."""
    with ExitStack() as stack:
        yield _Windows(chromium, stack)


class _Windows(dict[tuple[str, str, int], Visit]):
    def __init__(self, browser: Browser, stack: ExitStack) -> None:
        super().__init__()
        self.browser, self.stack = browser, stack

    def __missing__(self, key: tuple[str, str, int]) -> Visit:
        url, theme, width = key
        self[key] = self.stack.enter_context(visiting(self.browser, url, cast(Theme, theme), width))
        return self[key]


def look_at(visit: Visit, path: str, name: str, theme: str, width: int) -> None:
    visit.open(path)
    visit.photograph(SCREENSHOTS, f"{name}-{theme}-{width}.png")
    assert visit.page.get_by_test_id("stApp").evaluate("app => getComputedStyle(app).backgroundColor") == GROUNDS[theme]
    assert visit.page.get_by_test_id("stException").count() == 0
    assert visit.overflow() == 0
    assert violations(visit.page) == []
    assert visit.complaints == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_a_page_of_an_empty_home(
    windows: dict[tuple[str, str, int], Visit], empty_studio: Studio, page: str, theme: str, width: int
) -> None:
    look_at(windows[empty_studio.url, theme, width], plain(page), f"empty-{page}", theme, width)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [*PAGES, *SHOWING])
@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_a_page_with_a_measured_model(
    windows: dict[tuple[str, str, int], Visit], studio: Studio, measured: EvaluationView, page: str, theme: str, width: int
) -> None:
    made_by = artifacts.show(studio.workspace, measured.document.variants[1].variant.source).job_id
    path = plain(page) if page in PAGES else showing(page, measured, made_by)
    look_at(windows[studio.url, theme, width], path, page, theme, width)
