"""Compare presets: charts first, then what differs. On the Presets page, and on Compare beside evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from app import charts, navigation, url_parameters
from app.compare import side_by_side
from app.formatting import plain
from app.load_bar import address
from app.presets import preset_page
from app.presets import preset_rows as preset_rows
from backend.domain.planner.presets import Claim
from backend.present import preset_figures as preset_figures
from backend.present.charts import presets as charts_presets
from backend.present.charts.markers import style_indices
from backend.present.charts.presets import Series
from backend.present.tables.evaluation import sheet
from backend.service import Workspace
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.presets import preset_comparison
from backend.service.presets import presets as service
from backend.service.presets.presets import PresetView

MOST = 8
OFFERED = 500
COLUMNS = ("preset", "model", "goal", "target", "recipe", "kind", "concurrency", "metric", "least", "most", "source")


def choose(opened: Workspace) -> list[PresetView]:
    """Draw the selection of presets on Compare; it is `presets=` in the address."""
    # Read the presets of the address.
    known_presets = preset_page.find_presets(opened, url_parameters.query().get("presets", ""))
    if len(known_presets) > MOST:
        st.warning(f"Only the first {MOST} presets are shown.", icon=":material/warning:")
    # Offer them with the newest others.
    ids = [known.preset.id for known in known_presets[:MOST]]
    offered = [known.preset.id for known in service.listing(opened, limit=OFFERED)]
    navigation.multiselect(
        "Presets",
        [*offered, *ids],
        ids,
        name="presets",
        key="compare_presets",
        max_selections=MOST,
        placeholder="Choose two or more",
    )
    return service.views(opened, known_presets[:MOST], address.current().expected)


def series(
    views: Sequence[PresetView], names: Sequence[str], evaluations: Sequence[EvaluationView] = ()
) -> list[Series]:
    """Return each preset's estimate and latest measurement in one colour, then each variant of the evaluations in its
    own."""
    results = [
        (evaluation, result, labels[result.name])
        for evaluation, labels in zip(evaluations, side_by_side.variant_labels(evaluations), strict=True)
        for result in evaluation.document.variants
    ]
    variant_names = [
        "" if result is evaluation.document.variants[0] else result.name for evaluation, result, _ in results
    ]
    places, drawn = style_indices([*(view.preset.id for view in views), *variant_names]), []
    for place, name, view in zip(places, names, views, strict=False):
        drawn.append(charts_presets.estimated_series(name, place, view.estimated))
        drawn += [charts_presets.measured_series(name, place, measured) for measured in view.measured[:1]]
    for place, (evaluation, result, label) in zip(places[len(views) :], results, strict=True):
        measured = preset_figures.measurement(evaluation.document, result, evaluation.id)
        drawn.append(charts_presets.measured_series(label, place, measured))
    return [line for line in drawn if line.points]


def show(opened: Workspace, views: Sequence[PresetView], evaluations: Sequence[EvaluationView] = ()) -> None:
    """Draw charts, differences and downloads."""
    # 1. Charts.
    names = preset_comparison.short_names(opened, [view.preset for view in views], address.current().expected)
    theme, drawn = charts.theme(), series(views, names, evaluations)
    charts.show(charts_presets.pareto(drawn, theme), "presets-pareto")
    st.caption(
        "Up and to the right is better. The number at a mark is its concurrent requests. Open marks on broad bars"
        " are estimated ranges, filled ones are measured; each kind has a separate Pareto front. A preset is "
        "named after its goal if its figures meet it at every load drawn here, else after its recipe."
    )
    left, right = st.columns(2)
    with left:
        charts.show(charts_presets.tpot(drawn, theme), "presets-tpot")
    with right:
        charts.show(charts_presets.price(drawn, theme), "presets-price")
    # 2. Differences as a table.
    st.caption(preset_rows.legend())
    only = st.toggle("Differences only", True, key="compare_preset_differences", bind="query-params")
    rows = preset_rows.difference_rows(views, names, only=only)
    if rows:
        words = "What differs between the presets: estimated, published and measured separately"
        st.dataframe(rows, hide_index=True, height="content", alt=words)
    else:
        st.caption("Only the id differs.")
    # 3. Published claims and downloads.
    _claims(views)
    _downloads(views)


def _claims(views: Sequence[PresetView]) -> None:
    """Show the conditions of published figures."""
    claims: dict[Claim, str | None] = {}
    for view in views:
        claims.update(zip(view.preset.published, view.today, strict=True))
    if claims:
        with st.expander("Published figures (third-party, unverified)", icon=":material/format_quote:"):
            for claim, today in claims.items():
                for part in preset_rows.claim_lines(claim, today):
                    st.markdown(part)


def _downloads(views: Sequence[PresetView]) -> None:
    with st.container(horizontal=True):
        st.download_button(
            "Figures as CSV",
            lambda: figures_csv(views),
            "presets.csv",
            "text/csv",
            on_click="ignore",
            key="compare_presets-csv",
            icon=":material/download:",
        )
        st.download_button(
            "All as JSON",
            lambda: json.dumps([view.model_dump(mode="json") for view in views], indent=1),
            "presets.json",
            "application/json",
            on_click="ignore",
            key="compare_presets-json",
            icon=":material/download:",
        )
        for view in views:
            navigation.link("presets", f"Apply {plain(view.preset.id)}", ":material/bookmark:", selected=view.preset.id)


def figures_csv(views: Sequence[PresetView]) -> str:
    """Return RFC 4180 CSV, a row per figure, ranges as least and most. No cell is a formula to a spreadsheet."""
    return sheet(COLUMNS, preset_rows.figure_rows(views))
