"""Choose the variants on the charts: all of a few, else a selection in the address."""

from __future__ import annotations

import streamlit as st

from app.navigation import page_key
from backend.domain.evaluation.document import Evaluation
from backend.domain.limits.chart_selection import FEW_ENOUGH, MOST_LINES, choose_foremost, select_variants


def choose(document: Evaluation, key: str) -> Evaluation:
    """Return the document with the variants to draw; the field appears only if there are many."""
    # Few variants need no choice.
    names = [result.name for result in document.variants]
    if len(names) <= FEW_ENOUGH:
        return document
    # Offer all; at first those that matter most.
    chosen = st.multiselect(
        f"Variants on the charts (of {len(names)})",
        names,
        default=choose_foremost(document),
        key=page_key(key),
        max_selections=2 * MOST_LINES,
        bind="query-params",
        placeholder="The foremost",
        help="At first the baseline and those with most levels on the Pareto front. Tables have all of them.",
    )
    return select_variants(document, chosen or choose_foremost(document))
