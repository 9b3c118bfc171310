"""The field of a model that also takes typed text: words that fit exactly one known model choose it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from backend.domain import similar_names
from backend.domain.errors import UnknownModel, WhetstoneError
from backend.service import Workspace
from backend.service.models import models

Names = Mapping[str, str]
"""source -> name that a person knows it by."""


def draw(
    opened: Workspace, label: str, options: Iterable[str], *known: Names, key: str, **widget_options: Any
) -> str | None:
    """Draw the field. Return the chosen source, or typed text that fits no model or several. `known`: as
    `resolve_typed`."""
    offered = list(options)

    def take_typed() -> None:
        text = st.session_state[key]
        if text and text not in offered:
            st.session_state[key] = resolve_typed(opened, text, *known)

    chosen: str | None = st.selectbox(
        label, offered, key=key, accept_new_options=True, on_change=take_typed, **widget_options
    )
    return chosen


def resolve_typed(opened: Workspace, text: str, *known: Names) -> str:
    """Return the source of the only known model that has these words in its name; else the text itself.

    The first of `known` that has any such model decides: models here come before those that are only published. What is
    a model or a path by itself is never changed.
    """
    # 1. Text that names a model, or something that cannot be used, as the page will say.
    try:
        models.resolve_facts(opened, text)
        return text
    except UnknownModel:
        pass
    except WhetstoneError:
        return text
    # 2. A model that has the words in its name.
    for names in known:
        if fitting := similar_names.find_fitting(text, names):
            return fitting[0] if len(fitting) == 1 else text
    return text
