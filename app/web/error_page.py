"""The message of a page that fails unexpectedly: an id under which the error is in the log of the studio.

The error itself may hold paths, queries and text of others, which the viewer must not see.
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
    """Show the error, as Streamlit's `on_script_error`. Return True, since nothing else is to be shown."""
    if isinstance(error, WhetstoneError):
        st.error(message(error), icon=":material/error:")
        return True
    identity = secrets.token_hex(ID_BYTES)
    LOG.error("A page failed: error %s.", identity, exc_info=error, extra={"event": "page-failed"})
    st.error(
        f"This page failed. The error has the id `{identity}`: reload the page, and if it fails again, give the id"
        " to the owner of this studio, who finds it in studio.log of its home.",
        icon=":material/error:",
    )
    return True
