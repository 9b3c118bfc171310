"""What a page says when it fails in a way that nobody foresaw: an id, under which the whole error stands in the
studio's log.

The error itself may hold paths, queries and words of others, which are nothing for whoever looks at the page.
"""

from __future__ import annotations

import logging
import secrets

import streamlit as st

from app.formatting import message
from backend.domain.errors import WhetstoneError

LOG = logging.getLogger(__name__)
ID_BYTES = 4


def show(error: Exception) -> bool:
    """Streamlit's `on_script_error`: answer True, since nothing else is to be shown. A sentence of ours is shown as it
    is."""
    if isinstance(error, WhetstoneError):
        st.error(message(error), icon=":material/error:")
        return True
    identity = secrets.token_hex(ID_BYTES)
    LOG.error("A page failed: error %s.", identity, exc_info=error, extra={"event": "page-failed"})
    st.error(
        f"This page failed, and the error is written down as `{identity}`: reload the page, and if it fails again, give that id "
        "to whoever runs this studio, who finds it in studio.log of its home.",
        icon=":material/error:",
    )
    return True
