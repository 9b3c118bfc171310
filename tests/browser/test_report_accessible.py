"""The report of what was really measured, opened from the disk with the network off: accessible in each theme and
width."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from tests.browser.accessibility import violations
from tests.browser.running import Studio
from tests.browser.visit import HEIGHT, OTHER, WIDTHS, resize

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_the_report_is_accessible(
    chromium: Browser, studio: Studio, measured: EvaluationView, screenshots: Path | None, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(evaluations.report_file(studio.workspace, measured.id))
    context = chromium.new_context(viewport={"width": WIDTHS[0], "height": HEIGHT}, offline=True)
    page = context.new_page()
    page.goto(file.as_uri())
    plots = page.locator(".plot")
    expect(plots.first.locator(".main-svg").first).to_be_visible()
    expect(plots.filter(has_not=page.locator(".main-svg"))).to_have_count(0)
    for theme, width in product(OTHER, WIDTHS) if screenshots else zip(OTHER, WIDTHS, strict=True):
        page.emulate_media(color_scheme=theme)
        resize(page, width, ".plot")
        if screenshots:
            page.screenshot(path=screenshots / f"report-{theme}-{width}.png")
            page.screenshot(path=screenshots / "whole" / f"report-{theme}-{width}.png", full_page=True)
        assert violations(page) == []
    context.close()
