"""Speculation of an evaluation: acceptance, speed-up, and whether the answers stayed the same."""

from __future__ import annotations

import streamlit as st

from app import charts
from app.formatting import plain
from app.navigation import page_key
from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.evidence.speculation_gains import PredictedGains, drafted_levels, drafted_loads
from backend.domain.load.load import Load
from backend.present.speculation import acceptance, words
from backend.service import Workspace
from backend.service.evaluations import predicted_gains

HEIGHT = 380
"""Height in pixels."""


def speculates(document: Evaluation) -> bool:
    """Tell whether any variant uses speculative decoding, as far as is known."""
    return bool(words.speculating(document) or drafted_levels(document))


def show(opened: Workspace, document: Evaluation) -> None:
    """Draw the speed-up first, then its causes, then whether answers changed."""
    # Only some evaluations have a variant that speculates.
    if not speculates(document):
        st.info(
            "No variant here uses speculative decoding: add a `speculate` step to a recipe.", icon=":material/info:"
        )
        return
    # Speed-up and acceptance.
    loads = drafted_loads(document)
    if loads:
        draw(document, loads, predicted_gains.predict(opened, document))
    else:
        st.info(acceptance.NOTHING, icon=":material/info:")
    # Whether the answers stayed the same.
    st.subheader("Are the answers the same?")
    st.table(
        _plain(words.lossless_rows(document)),
        border="horizontal",
        hide_index=True,
        alt="Whether speculation changes the answers",
    )
    st.caption(words.MEANING)


def draw(document: Evaluation, loads: list[Load], predicted: PredictedGains) -> None:
    # The speed-up over all loads.
    theme = charts.theme()
    charts.show(charts.with_height(acceptance.gain(document, theme, predicted), HEIGHT), "speculation-gain")
    # Acceptance at one load.
    names = [load.words for load in loads]
    chosen = st.radio("Load", names, key=page_key("speculation_load"), horizontal=True, bind="query-params")
    load = loads[names.index(chosen or names[0])]
    left, right = st.columns(2)
    with left:
        charts.show(charts.with_height(acceptance.by_position(document, load, theme), HEIGHT), "speculation-positions")
    with right:
        charts.show(charts.with_height(acceptance.lengths(document, load, theme), HEIGHT), "speculation-lengths")
    if any(drafted.drafting.steps for drafted in drafted_levels(document, load)):
        charts.show(charts.with_height(acceptance.by_kind(document, load, theme), HEIGHT), "speculation-kinds")
    # All figures of acceptance.
    st.table(_plain(words.rows(document)), border="horizontal", hide_index=True, alt="What was accepted at each load")
    st.caption(
        "By the server's own counters, warm-up included. Tokens per step by kind are of measured answers, chunk "
        "by chunk."
    )


def _plain(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [
        {name: f"**{plain(cell)}**" if name == "Variant" else plain(cell) for name, cell in row.items()} for row in rows
    ]
