"""The parts that a structured pruning removed, on the page of its job: a sentence, and the importance of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app import charts
from app.formatting import plain
from backend.domain.needs.structure import removal_sentence
from backend.present.charts.curves.layer_importance import layer_importance


def panel(record: Mapping[str, Any] | None) -> None:
    """Draw the record `structure` of a manifest; nothing where no whole part was removed."""
    if not record:
        return
    st.subheader("What was removed")
    st.markdown(plain(removal_sentence(record)))
    if record["method"] == "depth":
        charts.show(layer_importance(record["ranking"], record["importance"], charts.theme()), "layer-importance")
