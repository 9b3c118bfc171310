"""From a model to what serves it within limits, by clicks alone: limits, a search, its winner as an endpoint that
answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from backend import served_keys
from backend.domain.errors import EngineMissing
from backend.hardware.engine_status import quantizer_folder
from backend.service.serving import local_endpoints
from backend.service.tuning import tunings
from tests.browser.accessibility import violations
from tests.browser.form_steps import query_value
from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting
from tests.helpers.running_gateway import ask, require_ok
from tests.homes import eventually, processes_of

pytestmark = [pytest.mark.campaign, pytest.mark.vllm, pytest.mark.timeout(1200)]
LONG_MS = 900_000


def set_limits(visit: Visit) -> None:
    """Your load: two users, and a limit that every stack here meets."""
    visit.page.get_by_test_id("stSidebar").get_by_role("button", name="Your load").click()
    popover = visit.page.get_by_test_id("stPopoverBody")
    for words, value in (("Users at once", "2"), ("TTFT p95, at most (ms)", "60000")):
        field = popover.get_by_label(words, exact=True).and_(popover.get_by_role("spinbutton"))
        field.fill(value)
        field.press("Enter")
    visit.page.keyboard.press("Escape")
    expect(visit.main.get_by_text("Within TTFT p95 up to 60,000 ms")).to_be_visible()


def choose(visit: Visit, words: str, value: str) -> None:
    field = visit.main.get_by_role("combobox", name=words)
    field.click()
    field.fill(value)
    field.press("Enter")
    visit.page.keyboard.press("Escape")
    visit.drawn()


def search(visit: Visit) -> str:
    """The form -> the live search -> its winner; the search's id."""
    visit.main.get_by_text("Engines, weights, disk and rivals").click()
    choose(visit, "Engines", "llama.cpp")
    choose(visit, "Weights", "q8_0")
    visit.button("Find the best stack").dblclick()
    visit.page.wait_for_url(re.compile(r"[?&]id=t-"))
    expect(visit.button("Stop")).to_be_visible()
    expect(visit.main.get_by_text(re.compile(r" wins(, [\d.]+x the original)?: "))).to_be_visible(timeout=LONG_MS)
    return query_value(visit, "id")


def test_from_a_model_to_what_serves_it_within_limits(
    chromium: Browser, studio: Studio, screenshots: Path | None
) -> None:
    workspace = studio.workspace
    try:
        quantizer_folder(workspace.settings)
    except EngineMissing as missing:  # llama.cpp's wheel has none
        pytest.skip(str(missing))
    before = {one.id for one in tunings.listing(workspace)}
    with visiting(chromium, studio.url) as visit:
        visit.open("/tune?model=starter")
        set_limits(visit)
        ended = tunings.show(workspace, search(visit))
        assert ended.winner is not None and {one.id for one in tunings.listing(workspace)} - before == {ended.id}
        expect(visit.button("Serve")).to_be_visible()  # only the run after the search's end draws it
        visit.drawn()
        for check in visit.appearances(every=screenshots is not None):
            visit.photograph(screenshots, f"tune-done-{check}.png")
            assert visit.overflow() == 0, check
            assert violations(visit.page) == [], check
        # The winner stays behind one address.
        visit.button("Serve").click()
        visit.heading("Endpoints")
        (endpoint,) = local_endpoints.list_running(workspace)
        eventually("it is loaded", lambda: local_endpoints.list_loaded(workspace) == [endpoint.name])
        port = local_endpoints.show(workspace, endpoint.name).url.rpartition(":")[2].removesuffix("/v1")
        body = {"model": endpoint.name, "prompt": "def main():", "max_tokens": 4, "stream": False}
        key = served_keys.find(int(port))
        require_ok(ask(int(port), "/v1/completions", body, authorization=f"Bearer {key}"))
        visit.button("Stop").click()
        eventually("it is stopped", lambda: local_endpoints.list_running(workspace) == [])
        local_endpoints.remove(workspace, endpoint.name)
        eventually("its processes have ended", lambda: processes_of(workspace) == [])
