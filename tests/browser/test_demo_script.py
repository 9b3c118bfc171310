"""docs/demo.md as it stands there, from Home to the report, on the demonstration's stored results: no dead end, axe
clean, and an evaluation that shows its first chart at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, expect

from backend.settings import CHECKOUT
from tests.browser.accessibility import violations
from tests.browser.form_steps import read_offline
from tests.browser.running import running_studio
from tests.browser.visit import Visit, resize, visiting


def home(visit: Visit) -> None:
    visit.open("/")
    visit.heading("Whetstone")
    check_accessible(visit)
    visit.link("Open the evaluation")


MOST_WORDS, MOST_PIXELS = 60, 420
FIRST_SIGHT = """main => {
    const chart = main.querySelector("[data-testid=stPlotlyChart]")
    const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT)
    const words = []
    for (let text = texts.nextNode(); text && !chart.contains(text); text = texts.nextNode()) {
        const shown = text.parentElement.checkVisibility({visibilityProperty: true})
        if (shown && !text.parentElement.closest("style, script, [data-testid=stIconMaterial]"))
            words.push(...text.data.split(/\\s+/).filter(word => /[\\p{L}\\p{N}]/u.test(word)))
    }
    return [words.length, chart.getBoundingClientRect().top - main.getBoundingClientRect().top, words.join(" ")]
}"""
"""Words and pixels between the top of the page without its menu and its first chart."""


def check_first_sight(visit: Visit) -> None:
    """Check that a reader of 1280 by 900 pixels sees a chart before much text."""
    words, pixels, text = visit.main.evaluate(FIRST_SIGHT)
    assert words <= MOST_WORDS and pixels <= MOST_PIXELS, f"{words} words and {pixels} px above the chart: {text}"


def evaluation(visit: Visit) -> None:
    visit.heading("SmolLM2-135M-Instruct vs 2 variants")
    visit.drawn()
    check_first_sight(visit)
    for tab in ("Quality", "Price", "Conditions", "Speed"):
        visit.main.get_by_role("tab", name=tab, exact=True).click()
        visit.page.wait_for_url(re.compile(rf"evaluate_view={tab}") if tab != "Speed" else re.compile(r"/evaluate"))
        check_accessible(visit)
    narrow(visit)
    visit.link("Compare")


def narrow(visit: Visit) -> None:
    """Where the page is magnified four times (WCAG 1.4.10), a table is wider than it and takes the keyboard."""
    resize(visit.page, 320, "[data-testid=stPlotlyChart]")
    expect(visit.main.get_by_role("region", name="Table that scrolls sideways").first).to_be_visible()
    check_accessible(visit)
    resize(visit.page, 1280, "[data-testid=stPlotlyChart]")
    expect(visit.main.get_by_role("region", name="Table that scrolls sideways")).to_have_count(0)


def compare(visit: Visit) -> None:
    visit.heading("Compare")
    visit.drawn()
    field = visit.main.get_by_label(re.compile(r"^Price per hour")).first
    field.fill("2")
    field.press("Tab")
    visit.page.wait_for_url(re.compile(r"[?&]prices=2(&|$)"))
    check_accessible(visit)
    visit.menu("Catalog")


def catalog(visit: Visit) -> None:
    expect(visit.main.get_by_text(re.compile("USD per million output tokens, estimated at"))).to_be_visible()
    check_accessible(visit)
    visit.first_row()


def model(visit: Visit) -> None:
    expect(visit.main.get_by_text("Price per million output tokens").first).to_be_visible()
    choose(visit, "Check for", "ml.g5.xlarge")
    expect(visit.main.get_by_text(re.compile("estimated on .*, chosen below"))).to_be_visible()
    check_accessible(visit)
    visit.button("Optimize").click()


def build(visit: Visit) -> None:
    visit.heading("Build")
    visit.page.wait_for_url(re.compile(r"[?&]target=ml\.g5\.xlarge"))
    visit.button("Lower cost").click()
    expect(visit.main.get_by_text(re.compile(r"^1\. Quantize")).first).to_be_visible()
    check_accessible(visit)
    visit.main.evaluate("main => main.scrollTo(0, main.scrollHeight)")
    for each in (
        visit.main.get_by_role("heading", level=1),
        visit.main.get_by_role("button", name=re.compile("^Optimize")),
    ):
        expect(each).to_be_in_viewport()  # they scrolled away
    visit.menu("Jobs")


def job(visit: Visit) -> None:
    visit.link("Open")
    expect(visit.main.get_by_role("heading", name="What next?")).to_be_visible()
    visit.main.get_by_role("tab", name="curl", exact=True).click()
    check_accessible(visit)
    visit.menu("Evaluate")


def report(visit: Visit, browser: Browser, file: Path) -> None:
    expect(visit.main.get_by_role("heading", name="Past evaluations")).to_be_visible()
    visit.first_row()
    visit.heading("SmolLM2-135M-Instruct vs 2 variants")
    with visit.page.expect_download() as saving:
        visit.action("Report (HTML)").click()
    check_accessible(visit)
    saving.value.save_as(file)
    read_offline(browser, file)


def check_accessible(visit: Visit) -> None:
    """What an audience would notice."""
    visit.drawn()
    expect(visit.page.get_by_test_id("stException")).to_have_count(0)
    assert violations(visit.page) == []


def choose(visit: Visit, field: str, option: str) -> None:
    visit.main.get_by_role("combobox", name=re.compile(re.escape(field))).click()
    visit.page.keyboard.type(option)
    visit.page.get_by_role("option", name=option, exact=True).click()
    visit.drawn()


STEPS: dict[str, Callable[[Visit], None]] = {
    "Home": home,
    "The evaluation": evaluation,
    "Compare": compare,
    "Catalog": catalog,
    "The model": model,
    "Build": build,
    "A job": job,
}


def test_the_demo_is_played_from_home_to_the_report(chromium: Browser, tmp_path: Path) -> None:
    written = re.findall(r"^## \d+\. ([^:]+):", (CHECKOUT / "docs" / "demo.md").read_text(), re.MULTILINE)
    assert written == [*STEPS, "The report"]
    with running_studio(tmp_path / "home", "--demo") as studio, visiting(chromium, studio.url) as visit:
        for play in STEPS.values():
            play(visit)
        report(visit, chromium, tmp_path / "report.html")
