"""The presets of one model at a glance: time per token against price, and a sentence for each."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts, navigation, url_parameters
from app.formatting import message, plain
from app.load_bar import address
from app.presets import preset_page
from backend.domain.planner.preset_titles import tradeoff_sentence
from backend.present import load_words
from backend.present.charts import presets as preset_charts
from backend.present.charts.markers import style_indices
from backend.present.charts.presets import Series
from backend.present.preset_figures import Estimated
from backend.service import Workspace
from backend.service.plans import recipe_files
from backend.service.presets import preset_comparison, preset_figures, presets
from backend.service.presets.preset_comparison import PresetComparison
from backend.service.presets.presets import PresetFilter, PresetView


def show(opened: Workspace, model: str) -> None:
    """Draw the presets of a model beside its original and the variants that were measured here; nothing without two
    presets."""
    # 1. The presets and the original at the planned load.
    load = address.current().expected
    known_presets = presets.listing(opened, PresetFilter(model=model))
    if len(known_presets) < 2:
        return
    views = presets.views(opened, known_presets, load)
    comparison = preset_comparison.compare(opened, [view.preset for view in views], load)
    preset_page.show_winner(comparison)
    # 2. The chart, and a sentence for each preset beside it.
    left, right = st.columns([3, 2], gap="medium")
    with left:
        series = list_series(opened, model, views, comparison)
        charts.show(preset_charts.latency_price(series, load, charts.theme()), "presets-front")
    with right:
        st.markdown(f"**{plain(load_words.requests(load))}**")
        for view, estimate in zip(views, comparison.estimates, strict=True):
            sentence = tradeoff_sentence(estimate, comparison.original)
            place = load_words.instances(view.preset.target, estimate)
            name, whom = comparison.name(view.preset.id), comparison.suits_whom(view.preset.id)
            st.markdown(f"**{plain(name)}** on {plain(place)}, best for: {plain(whom)}. {message(sentence)}")
            _show_links(view, model)
        st.caption(
            "Open marks with broad bars are estimated ranges; filled marks were measured at this load. Down "
            "and to the left is better."
        )


def _show_links(view: PresetView, model: str) -> None:
    """Draw the links to a preset's figures and to Build with its recipe, both under the same load."""
    preset = view.preset
    recipe = url_parameters.write_recipe(recipe_files.write_text(preset.recipe))
    with st.container(horizontal=True, vertical_alignment="center"):
        navigation.link("presets", "Details", ":material/bookmark:", presets_of_model=model, selected=preset.id)
        if recipe is not None:
            place = {"model": preset.model, "recipe": recipe, "target": preset.target}
            navigation.link("build", "Open in Build", ":material/construction:", **place)


def list_series(
    opened: Workspace, model: str, views: Sequence[PresetView], comparison: PresetComparison
) -> list[Series]:
    """Return the original in black, each preset in its colour, and what was measured here of them and of the model's
    variants."""
    # 1. The original and the presets, estimated and measured.
    ids = [view.preset.id for view in views]
    own = preset_figures.PresetEvaluations(opened).variants(model)
    places = style_indices(["", *ids, *(measurement.variant for measurement in own)])
    series = []
    if comparison.original is not None:
        series.append(preset_charts.estimated_series("original", places[0], Estimated(levels=(comparison.original,))))
    for place, view in zip(places[1:], views, strict=False):
        name = comparison.name(view.preset.id)
        series.append(preset_charts.estimated_series(name, place, view.estimated))
        series += [preset_charts.measured_series(name, place, measured) for measured in view.measured[:1]]
    # 2. The variants of the newest evaluation of the model.
    for place, measurement in zip(places[1 + len(ids) :], own, strict=True):
        series.append(preset_charts.measured_series(measurement.variant, place, measurement))
    return [one for one in series if one.points]
