"""Charts of presets: what plotly accepts, fronts that are fronts, and estimated marks that never look measured."""

from __future__ import annotations

import plotly.graph_objects as graph
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.present import preset_figures
from backend.present.charts import alt_text
from backend.present.charts import presets as charts
from backend.present.charts.presets import Point, Series
from backend.present.preset_figures import Estimated
from tests import simulated

ends = st.tuples(st.floats(0.1, 1e6), st.floats(1, 10)).map(lambda pair: (pair[0], pair[0] * pair[1]))
points = st.lists(st.builds(Point, st.sampled_from([1, 4, 16, 64]), ends, ends, ends, ends), min_size=1, max_size=20)


def measured(name: str = "w8a8", **options: object) -> Series:
    document = simulated.evaluation(**options)  # type: ignore[arg-type]
    return charts.measured_series(name, 1, preset_figures.measurement(document, document.variants[1], "e-1"))


def estimated(name: str = "w8a8", scale: float = 1.0) -> Series:
    created = [Point(at, (30 * scale, 50 * scale), (at * 5.0, at * 9.0), (20.0, 30.0), (1.0, 2.0)) for at in (1, 4, 16)]
    return Series(name, "estimated", 1, tuple(created), "Estimated for ml.g5.12xlarge")


FIGURES = {"pareto": charts.pareto, "tpot": charts.tpot, "price": charts.price}


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plotly_accepts_every_figure_and_it_has_words_and_rows(draw: object, theme: str) -> None:
    figure = draw([estimated(), measured()], theme)  # type: ignore[operator]
    graph.Figure(figure["data"], figure["layout"])
    assert "(estimated)" in alt_text.alt(figure) and "(measured)" in alt_text.alt(figure)
    rows = alt_text.rows(figure)
    assert len(rows) == 6 and all(row["Provenance"] for row in rows)


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
def test_without_figures_it_says_so(draw: object) -> None:
    figure = draw([charts.estimated_series("x", 1, Estimated(why_not="no"))])  # type: ignore[operator]
    assert figure["data"] == [] and alt_text.alt(figure)


def test_estimated_and_measured_differ_in_shape_line_and_word() -> None:
    for draw in FIGURES.values():
        traces = {trace["name"][0]: trace for trace in draw([estimated(), measured()])["data"] if "marker" in trace}
        guess, fact = traces["≈"], traces["●"]
        assert guess["marker"]["symbol"] == f"{fact['marker']['symbol']}-open"
        assert "error_y" in guess and "error_y" not in fact
        if "line" in guess:
            assert (guess["line"]["dash"], fact["line"]["dash"]) == ("dash", "solid")


def test_a_measurement_without_a_price_has_no_place_against_a_dollar() -> None:
    unpriced = measured(per_hour=None)
    assert all(point.per_dollar is None and point.price is None for point in unpriced.points)
    assert charts.pareto([unpriced])["data"] == []
    assert charts.tpot([unpriced])["data"]


def test_per_dollar_is_all_streams_over_the_hour() -> None:
    document = simulated.evaluation(per_hour=1.2)
    measurement = preset_figures.measurement(document, document.variants[1], "e-1")
    for point, level in zip(charts.measured_series("w", 1, measurement).points, measurement.levels, strict=True):
        assert point.per_dollar == (level.output_tokens_per_s / 1.2,) * 2


@given(points)
def test_no_point_of_the_front_is_beaten_and_every_other_one_is(points_drawn: list[Point]) -> None:
    def at(point: Point) -> tuple[float, float]:
        assert point.per_dollar and point.per_user
        return charts.middle(point.per_dollar), charts.middle(point.per_user)

    def beats(a: Point, b: Point) -> bool:
        return at(a)[0] >= at(b)[0] and at(a)[1] >= at(b)[1] and at(a) != at(b)

    front = charts.front(points_drawn)
    assert front and not any(beats(other, point) for other in points_drawn for point in front)
    assert all(any(beats(other, point) for other in front) for point in points_drawn if point not in front)


@pytest.mark.parametrize(("scale", "kind"), [(1.0, None), (1e4, "log")])
def test_far_apart_figures_get_a_log_axis_that_says_so(scale: float, kind: str | None) -> None:
    axis = charts.pareto([estimated(), estimated("other", scale)])["layout"]["yaxis"]
    assert axis.get("type") == kind and ("log scale" in axis["title"]["text"]) is (kind == "log")
