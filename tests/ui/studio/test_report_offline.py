"""The report in a real browser with the network off: it draws, it asks for nothing, and it shows hostile words as
words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.domain.evaluation.document import Evaluation
from backend.evaluate.report.report import write_report
from backend.present.charts.markers import LEGEND_WIDTH
from tests.browser.accessibility import violations
from tests.helpers.report_records import whole
from tests.simulated import evaluation

HOSTILE = "<script>window.owned=1</script><img src=x onerror='window.owned=1'>"
PLOTS = 11


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    return chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(evaluation(), tmp_path_factory.mktemp("report"))


class Visit:
    """One page opened from file:// in an offline context, with what it asked for and complained of."""

    def __init__(
        self, browser: Browser, path: Path, width: int = 1280, theme: Literal["light", "dark"] = "light", plots: int = 0
    ) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=theme, accept_downloads=True
        )
        self.context.set_offline(True)
        self.context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        # Locators alone: the page's policy forbids it to evaluate the strings that wait_for_function polls.
        expect(self.page.locator(".plot .plot-container")).to_have_count(plots or PLOTS)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_draws_every_chart_offline_and_asks_for_nothing(
    browser: Browser, report: Path, width: int, theme: Literal["light", "dark"]
) -> None:
    with Visit(browser, report, width, theme) as visit:
        plots = visit.page.locator(".plot .plot-container")
        assert plots.count() == PLOTS
        assert visit.page.locator(".plot path.point").count() >= 9 * 4
        # `data:` is the page itself: its icon and plotly's own measuring.
        assert {url.partition(":")[0] for url in visit.requests} <= {"file", "data"}
        assert [url for url in visit.requests if url.startswith("file:")] == [report.as_uri()]
        assert visit.complaints == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_that_it_can_show_is_drawn_and_accessible(browser: Browser, tmp_path: Path) -> None:
    extras, width = whole(), 390
    more = len(extras.requests.runs) + 3 + 4 if extras.requests else 0
    with Visit(browser, write_report(evaluation(), tmp_path, extras), width, "dark", PLOTS + more) as visit:
        assert visit.complaints == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        spread = visit.page.locator("[data-chart=spread_ttft_ms]")
        assert "at 1 stream" in (spread.get_attribute("aria-label") or "")
        visit.page.get_by_role("button", name="16 streams").click()
        assert "at 16 streams" in (spread.get_attribute("aria-label") or "")
        assert "p50" in (visit.page.locator("[data-chart=ttft_ms]").get_attribute("aria-label") or "")
        colour = visit.page.evaluate("document.querySelector('[data-chart=spread_ttft_ms]').layout.paper_bgcolor")
        assert colour == "#171c23"
        assert violations(visit.page) == []


def test_verdict_tiles_and_first_chart_begin_on_the_first_screen(browser: Browser, report: Path) -> None:
    with Visit(browser, report) as visit:
        for part in (
            visit.page.locator(".verdict"),
            visit.page.locator(".tile").last,
            visit.page.locator("figcaption"),
        ):
            box = part.first.bounding_box()
            assert box is not None and box["y"] + box["height"] < 800
        assert "Written by Whetstone" in visit.page.inner_text("footer")
        caveats = visit.page.locator("details.warnings")
        assert not caveats.get_by_role("list").is_visible()
        caveats.get_by_text("1 caveat").click()
        assert caveats.get_by_role("list").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("variants", [2, 8])
def test_no_legend_lies_over_its_chart(browser: Browser, tmp_path: Path, width: int, variants: int) -> None:
    names = ["original", *(f"a-variant-with-a-long-name-{number}" for number in range(1, variants))]
    document = evaluation(names=names, speeds=[1 + number / 10 for number in range(variants)])
    with Visit(browser, write_report(document, tmp_path), width) as visit:
        places = {
            plot.get_attribute("data-chart"): (
                plot.locator("g.legend").bounding_box(),
                plot.locator(".g-xtitle").bounding_box(),
                plot.evaluate("chart => chart._fullLayout._size.h"),
            )
            for plot in visit.page.locator(".plot[data-chart]").all()
            if plot.locator("g.legend").count()
        }
    assert len(places) >= PLOTS - 1
    for name, (legend, axis, height) in places.items():
        assert legend and axis
        assert legend["y"] >= axis["y"] + axis["height"] - 1, f"the legend of {name} lies over the name of its axis"
        assert height >= 90, f"the legend of {name} leaves its chart no room"


def test_the_percentile_buttons_redraw_figures_and_words(browser: Browser, report: Path) -> None:
    with Visit(browser, report) as visit:
        plot = visit.page.locator("[data-chart=ttft_ms]")
        before = plot.get_attribute("aria-label") or ""
        visit.page.get_by_role("button", name="p99").click()
        assert "p99" in (plot.get_attribute("aria-label") or "")
        assert "p50" in before
        drawn = visit.page.evaluate("document.querySelector('[data-chart=ttft_ms]').data[0].y[0]")
        first = evaluation().variants[0].levels[0].ttft_ms
        assert first is not None
        assert drawn == pytest.approx(first.p99)


def test_the_charts_follow_the_reader_from_light_to_dark(browser: Browser, report: Path) -> None:
    with Visit(browser, report) as visit:
        background = "document.querySelector('[data-chart=pareto]').layout.paper_bgcolor"
        assert visit.page.evaluate(background) == "#ffffff"
        visit.page.emulate_media(color_scheme="dark")
        expect(visit.page.locator("[data-chart=pareto] svg.main-svg").first).to_have_css(
            "background-color", "rgb(23, 28, 35)"
        )
        assert visit.page.evaluate(background) == "#171c23"


def test_hovering_a_point_tells_where_and_when_it_was_measured(browser: Browser, report: Path) -> None:
    with Visit(browser, report) as visit:
        plot = visit.page.locator("[data-chart=output_tokens_per_s]")
        plot.scroll_into_view_if_needed()
        box = plot.locator("path.point").nth(2).bounding_box()
        assert box is not None
        visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        label = plot.locator(".hoverlayer .hovertext")
        label.wait_for()
        assert "Simulated CPU" in (label.text_content() or "")


def test_the_json_can_be_saved_and_is_the_evaluation(browser: Browser, report: Path, tmp_path: Path) -> None:
    with Visit(browser, report) as visit:
        with visit.page.expect_download() as saving:
            visit.page.get_by_role("link", name="JSON").click()
        assert saving.value.suggested_filename == "evaluation.json"
        saving.value.save_as(tmp_path / "evaluation.json")
    document = (tmp_path / "evaluation.json").read_text()
    assert Evaluation.model_validate_json(document) == evaluation()
    assert json.loads(document)["variants"][1]["name"] == "w8a8"


def test_hostile_names_are_shown_as_text_in_page_and_charts(browser: Browser, tmp_path: Path) -> None:
    document = evaluation(names=["original", HOSTILE], speeds=[1, 2]).model_copy(update={"warnings": [HOSTILE]})
    with Visit(browser, write_report(document, tmp_path)) as visit:
        assert visit.page.evaluate("window.owned") is None
        assert visit.page.locator("img[src=x]").count() == 0
        assert HOSTILE in visit.page.inner_text("h1")
        assert (
            visit.page.locator("[data-chart=ttft_ms] .legendtext").nth(1).text_content()
            == f"{HOSTILE[: LEGEND_WIDTH // 2]}…{HOSTILE[LEGEND_WIDTH // 2 + 1 - LEGEND_WIDTH :]}"
        )
        assert visit.complaints == []


def test_a_reader_without_scripts_gets_the_verdicts_and_the_charts_words(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator(".verdict").is_visible() and page.locator(".tile").count() == 4
    words = page.locator("[data-chart=ttft_ms] noscript p")
    assert words.is_visible()
    assert words.inner_text().startswith("Time to first token, p50 (ms). Across: Concurrency (streams), 1 to 16.")
    assert "original: 3 points from " in words.inner_text()
    context.close()
