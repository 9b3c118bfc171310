"""The latest win on Home: a title, four tiles, a small chart; or one line on why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts, navigation
from app.formatting import message, plain, size, strong
from app.overview import caveats, tiles
from app.results import verdict_panel
from app.summaries import provenance
from backend.domain.evaluation.document import Evaluation
from backend.domain.machine import hardware_lines
from backend.present import evaluation_top
from backend.present.charts import tradeoffs
from backend.present.variant_tiles import variant_tiles
from backend.present.words import headline, load_search
from backend.present.words.headline import Tile, Win
from backend.service import Workspace
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.studio import demo_export

RECORDED = (
    "This is what the demo measured on that machine, not on yours. The first result of your own takes its place here; "
    "`whetstone up --demo` shows all of the recorded one."
)
LONGEST_S = 1800.0
"""Seconds beyond which measuring more is not what to do next."""
SMALL = 320
"""Height in pixels."""


def show(opened: Workspace, views: Sequence[EvaluationView]) -> None:
    """Draw the latest evaluation with a win, or the newest if none has one. `views` are newest first."""
    # The newest evaluation with a win, else the newest of all.
    view, win = views[0], None
    for candidate in views:
        win = headline.find_win(candidate.document)
        if win is not None:
            view = candidate
            break
    document = view.document
    with st.container(border=True, key="home_hero-box"):
        # Show the win, the load found by a search, or the verdict.
        if win is not None:
            _show_win(document, win)
        elif load_search.is_search(document):
            st.markdown(strong(load_search.sentences(document)[0]))
        else:
            verdict_panel.show_line(document, headline.headline_sentence(document))
            _show_tiles_and_front(document, variant_tiles(document))
            if evidence := headline.evidence_sentence(document):
                st.caption(message(evidence))
        # Lead on.
        with st.container(horizontal=True, vertical_alignment="center"):
            navigation.link("evaluate", "Open the evaluation", ":material/open_in_full:", id=view.id)
            navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
            navigation.link("evaluate", "All evaluations", ":material/history:")
            caveats.show(evaluation_top.caveat_sentences(document))
            if win is None and not verdict_panel.more_button(opened, view, within_s=LONGEST_S):
                _link_build(view)
        st.caption(plain(provenance(view)))


def _link_build(view: EvaluationView) -> None:
    """Link the page that makes another recipe for the model, where more measuring would decide nothing soon."""
    baseline = view.document.variants[0].variant
    model = {"model": baseline.source} if baseline.kind == "model" else {}
    navigation.link("build", "Try another recipe", ":material/build:", **model)


def show_recorded(opened: Workspace) -> None:
    """Draw the win that comes with Whetstone for a machine like this one, until this home has a result of its own;
    nothing if there is none."""
    document = demo_export.recorded_evaluation(demo_export.folder_here(opened.settings.recorded))
    win = headline.find_win(document) if document is not None else None
    if document is None or win is None:
        return
    where = hardware_lines.hardware_line(document.hardware)
    with st.container(border=True, key="home_hero-box"):
        st.markdown(f":material/history: **Recorded** on {plain(where)} on {document.measured_at[:10]}")
        _show_win(document, win)
        st.caption(RECORDED)


def _show_win(document: Evaluation, won: Win) -> None:
    """Draw the title of the win, its four tiles and the trade-off of both variants."""
    st.subheader(strong(headline.title_words(won)), help=message(headline.headline_sentence(document)))
    verdict_panel.show_other_load(document)
    weights = [size(result.variant.bytes_on_disk) for result in (won.before, won.after)]
    _show_tiles_and_front(document, headline.tiles(document, won, weights), [won.before.name, won.after.name])
    if others := headline.others_sentence(document, won):
        st.caption(message(others))


def _show_tiles_and_front(document: Evaluation, row: Sequence[Tile], names: Sequence[str] | None = None) -> None:
    """Draw the tiles, then the trade-off with these variants in colour, by default all."""
    tiles.show(row)
    front = tradeoffs.pareto(document, charts.theme(), names)
    front = charts.with_y_title(charts.with_height(front, SMALL), "Tokens/s per user")
    charts.show(front, "hero", file=False)
    st.caption(tradeoffs.HOW_TO_READ)
