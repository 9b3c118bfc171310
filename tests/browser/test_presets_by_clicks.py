"""Presets as a person uses them: apply one and land in Build with it, compare three by their address."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from backend.service.presets import presets
from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting

GOALS = ("lower-cost", "lower-latency", "balanced")
THREE = ",".join(f"llama-3-70b-instruct/{goal}" for goal in GOALS)


def compared(visit: Visit) -> None:
    """The chart of the three is drawn, with a legend of their own words."""
    chart = visit.main.get_by_test_id("stPlotlyChart").first
    expect(chart.locator(".legendtext")).to_have_text(
        ["Front of estimated points", "≈ INT4 (AWQ)", "≈ Lowest latency", "≈ Balanced"]
    )


def test_a_preset_is_applied_and_build_has_its_recipe(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open("/presets?selected=starter%2Flower-latency")
        expect(visit.main.get_by_text("Valid for starter on local")).to_be_visible()
        expect(visit.main.get_by_text(re.compile("^Measured 2026-")).first).to_be_visible()
        visit.link("Open in Build")
        visit.heading("Build")
        steps = visit.main.get_by_text(re.compile(r"^\d\. "))
        expect(steps).to_have_text(["1. Quantize to 8 bits (w8a8)", "2. Speculate with a draft model"])
        assert presets.find(studio.workspace, "starter/lower-latency").preset.recipe.name in visit.page.content()
        visit.page.go_back()
        visit.heading("Presets")
        expect(visit.main.get_by_text("Valid for starter on local")).to_be_visible()


def test_rows_that_are_ticked_are_in_the_address_and_compare_opens_with_them(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open("/presets?presets_words=llama-3-70b-instruct")
        table = visit.main.get_by_test_id("stDataFrame").first
        box = table.bounding_box()
        assert box is not None
        for row in range(len(GOALS)):
            visit.page.mouse.click(box["x"] + 16, box["y"] + 35 * (row + 1) + 17)
            expect(visit.page).to_have_url(re.compile("selected=.*" + GOALS[row]))
        visit.drawn()
        compared(visit)
        visit.button("Compare 3").click()
        visit.heading("Compare")
        expect(visit.page).to_have_url(re.compile("presets="))
        compared(visit)


def test_three_presets_are_compared_by_their_address(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open(f"/compare?presets={THREE}")
        compared(visit)
        visit.reload()
        compared(visit)
        with visit.page.expect_download() as saved:
            visit.button("Figures as CSV").click()
        text = saved.value.path().read_text()
        assert all(f"llama-3-70b-instruct/{goal}" in text for goal in GOALS) and "published" in text
