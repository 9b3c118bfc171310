"""Upload a calibration text for a quantization step: it is stored in the home, and its path is put into the recipe."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app import shell
from app.formatting import message
from app.session import disabled_unless_allowed
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.plans import calibration

REFUSED = "build_calibration_refused"


def upload(opened: Workspace, key: str, put: Callable[[str], None]) -> None:
    """Draw the upload. `put` gets the path of the stored file; an unusable file is refused with a sentence."""
    with st.popover("Upload calibration text", icon=":material/upload:", key=f"{key}-ask"):
        # Say what to upload, and take it.
        st.caption(
            "Text like your own traffic, some hundred kB: JSONL or Parquet with `text` or `prompt`, or plain text."
        )
        st.file_uploader(
            "Calibration file",
            type=list(calibration.TYPES),
            max_upload_size=calibration.MAX_MB,
            key=key,
            on_change=_take,
            args=(opened, key, put),
            **disabled_unless_allowed(opened, Action.UPLOAD),
        )
        # Show why the last file was refused.
        if refused := st.session_state.get(REFUSED):
            st.error(message(refused), icon=":material/error:")


def _take(opened: Workspace, key: str, put: Callable[[str], None]) -> None:
    file = st.session_state.get(key)
    st.session_state.pop(REFUSED, None)
    if file is None:
        return
    with shell.errors_in_session(REFUSED):
        put(str(calibration.save(opened, file.name, file.getvalue())))
