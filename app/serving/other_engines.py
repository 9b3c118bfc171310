"""Commands that serve a variant on engines that are not started here, to copy."""

from __future__ import annotations

import streamlit as st

from app.formatting import message
from app.navigation import page_key
from backend.domain.errors import WhetstoneError
from backend.domain.figures import code
from backend.service import Workspace
from backend.service.serving import launch_commands


def show(opened: Workspace, source: str) -> None:
    """Draw the choice of an engine and its command, or why it cannot serve the source."""
    # 1. The engine.
    titles = dict(launch_commands.list_engines())
    engine = st.segmented_control(
        "Engine elsewhere",
        list(titles),
        default=next(iter(titles)),
        required=True,
        format_func=lambda name: titles[name],
        key=page_key("next_elsewhere"),
        label_visibility="collapsed",
    )
    # 2. Its command, and what it rests on.
    try:
        launched = launch_commands.prepare(opened, source, engine or next(iter(titles)))
    except WhetstoneError as error:
        st.caption(message(error))
        return
    st.code(launched.command, language=None, wrap_lines=True)
    for note in launched.notes:
        st.caption(message(note))
    st.caption(message(f"When it runs, evaluate it by its address: {code(launched.url)}. Sources of the command:"))
    st.caption(message("; ".join(launched.sources) + "."))
