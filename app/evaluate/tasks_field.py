"""Draw the field of lm-eval tasks if they can be scored, else how to install what scores them."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.field_labels import LABELS
from app.formatting import message
from backend.service import Workspace
from backend.service.evaluations import tasks


def choose(opened: Workspace) -> dict[str, Any]:
    """Return fields of the options, not yet checked."""
    if (how := tasks.missing_packages(opened)) is not None:
        st.caption(f"Tasks of lm-eval can be scored too. {message(how)}")
        return {}
    left, right = st.columns([2, 1])
    written = left.text_input(
        LABELS["tasks"],
        key="evaluate_tasks",
        bind="query-params",
        placeholder="none",
        help=f"lm-eval tasks to score: a YAML file with its data beside it, a folder of such files, or "
        f"{', '.join(tasks.names())}. Separate several with commas.",
    )
    names = tuple(part.strip() for part in written.split(",") if part.strip())
    limit = right.number_input(
        LABELS["task_limit"],
        1,
        1_000_000,
        value=None,
        key="evaluate_task_limit",
        bind="query-params",
        placeholder="all",
        help="The first so many.",
    )
    return {"tasks": names, "task_limit": limit if names else None}
