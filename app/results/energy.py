"""Energy on a screen: joules an output token by the machine's own counters, or that it reports none."""

from __future__ import annotations

import streamlit as st

from app.words import plain
from backend.domain.evaluation import energy
from backend.domain.evaluation.document import Evaluation


def show(document: Evaluation) -> None:
    found = energy.rows(document)
    if found:
        st.subheader("Energy")
        st.dataframe(found, hide_index=True, alt="Energy of each level by the machine's counters")
    st.caption(plain(energy.basis(document)))
