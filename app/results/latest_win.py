"""The latest win on Home: one line, four figures before and after, a small chart; or one line on why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts, navigation
from app.formatting import plain, size, strong
from app.results import verdict_panel
from app.summaries import provenance
from backend.present.charts import evaluation as drawn
from backend.present.words import headline, load_search
from backend.present.words.headline import Win
from backend.service import Workspace
from backend.service.evaluations.evaluations import EvaluationView

SMALL = 300
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
    with st.container(border=True, key="home_hero-box"):
        # Show the win, the load found by a search, or the verdict.
        if win is not None:
            _show_win(view, win)
        elif load_search.is_search(view.document):
            st.markdown(strong(load_search.sentences(view.document)[0]))
        else:
            verdict_panel.show_line(view.document)
        # Lead on.
        with st.container(horizontal=True, vertical_alignment="center"):
            navigation.link("evaluate", "Open the evaluation", ":material/open_in_full:", id=view.id)
            navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
            navigation.link("evaluate", "All evaluations", ":material/history:")
            if win is None:
                verdict_panel.more_button(opened, view)
        st.caption(plain(provenance(view)))


def _show_win(view: EvaluationView, won: Win) -> None:
    st.subheader(strong(headline.headline_sentence(view.document)))
    left, right = st.columns([3, 2], vertical_alignment="center")
    weights = [size(result.variant.bytes_on_disk) for result in (won.before, won.after)]
    tiles = headline.tiles(view.document, won, weights)
    with left:
        for row in (tiles[:2], tiles[2:]):
            for column, tile in zip(st.columns(2), row, strict=True):
                with column.container(border=True, height="stretch"):
                    st.metric(tile.label, tile.value)
                    st.caption(plain(tile.detail))
    with right:
        chart = drawn.before_after(view.document, won.before.name, won.after.name, charts.theme())
        charts.show(charts.with_height(chart, SMALL), "hero", file=False)
