"""Ask where the bearer token of external endpoints is. The token itself is never typed here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.field_labels import LABELS

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def choose(sources: Sequence[str]) -> dict[str, Any]:
    """Return the option if some variant is a URL. It is not in the address, since somebody might paste the token."""
    if not any(source.startswith(("http://", "https://")) for source in sources):
        return {}
    written = st.text_input(
        LABELS["bearer_env"],
        key="evaluate_bearer_env",
        placeholder="none",
        max_chars=80,
        help=(
            "The name of the variable, such as WHETSTONE_TOKEN_OPENAI. Only variables with this prefix, and "
            "those listed in WHETSTONE_BEARER_ENV, are sent (NAME@HOST there: to that host; if others can reach "
            "the studio, to no other), and never unencrypted to another machine. It is read when the evaluation "
            "runs, from the environment in which whetstone up was started, and is not stored. To use a model "
            "other than the endpoint's first one, write it after the address: URL#MODEL."
        ),
    ).strip()
    if written and not NAME.fullmatch(written):
        st.error(
            "That is not a name of an environment variable: give its name, never the token itself.",
            icon=":material/error:",
        )
        return {}
    return {"bearer_env": written or None}
