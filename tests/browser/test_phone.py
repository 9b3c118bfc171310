"""The recorded win on a phone: tiles in pairs with all their words, the first chart in sight, legends below charts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator

from tests.browser.running import Studio, running_studio
from tests.browser.visit import Visit, visiting
from tests.pictures import EVALUATION

pytestmark = pytest.mark.timeout(300)
WIDTH, HEIGHT = 390, 844
IS_CUT = "element => element.scrollWidth > element.clientWidth + 1"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with running_studio(tmp_path_factory.mktemp("recorded") / "home", "--demo") as studio:
        yield studio


def top_of(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["y"]


@pytest.mark.parametrize("path", ["/", f"/evaluate?id={EVALUATION}"])
def test_tiles_stand_two_in_a_row_and_the_first_chart_is_in_sight(
    chromium: Browser, recorded: Studio, path: str
) -> None:
    with visiting(chromium, recorded.url, width=WIDTH) as visit:
        visit.open(path)
        visit.still()
        tiles = visit.main.get_by_test_id("stMetric").all()
        tops = [top_of(tile) for tile in tiles]
        assert len(tiles) >= 3 and tops[0] == pytest.approx(tops[1], abs=1) and tops[2] > tops[1]
        words = visit.main.locator("[data-testid=stMetric] p")
        assert not [each.inner_text() for each in words.all() if each.evaluate(IS_CUT)]
        assert top_of(visit.main.get_by_test_id("stPlotlyChart").first) < HEIGHT
        assert visit.overflow() == 0


def overlaps(visit: Visit) -> list[str]:
    """Return the charts whose legend lies over the name of the axis above it."""
    over = []
    for chart in visit.main.get_by_test_id("stPlotlyChart").all():
        legend, axis = chart.locator("g.legend"), chart.locator(".g-xtitle")
        if legend.count() and axis.count():
            box = axis.bounding_box()
            if box is None or top_of(legend) < box["y"] + box["height"] - 1:
                over.append(chart.locator(".g-gtitle").inner_text())
    return over


@pytest.mark.parametrize("path", ["/", f"/evaluate?id={EVALUATION}", f"/compare?ids={EVALUATION}"])
def test_no_legend_lies_over_a_chart(chromium: Browser, recorded: Studio, path: str) -> None:
    with visiting(chromium, recorded.url, width=WIDTH) as visit:
        visit.open(path)
        visit.still()
        assert visit.main.locator("g.legend").count() >= 1
        assert overlaps(visit) == []
