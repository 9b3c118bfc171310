"""The fields of lm-eval tasks on Evaluate: which are scored, how many samples, and getting the data of one by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import navigation, shell, url_parameters
from app.field_labels import LABELS
from app.formatting import message, plain
from backend.domain.figures import figure, listed
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.evaluations import tasks
from backend.service.tasks import named_tasks
from backend.service.tasks.named_tasks import TaskListing

FIELD, REFUSED = "evaluate_tasks", "get_tasks_refused"


def choose_tasks(opened: Workspace) -> dict[str, Any]:
    """Draw the field of lm-eval tasks, or how to install what scores them. Return fields that are not yet checked."""
    # 1. Without lm-eval, say how to get it.
    if (how := tasks.missing_packages(opened)) is not None:
        st.caption(f"Tasks of lm-eval can be scored too. {message(how)}")
        return {}
    # 2. The tasks, and how many samples of each.
    known = {task.name: task for task in named_tasks.listing(opened)}
    left, right = st.columns([2, 1])
    with left:
        names = _choose_names(known)
    limit = right.number_input(
        LABELS["task_limit"],
        1,
        1_000_000,
        value=None,
        key="evaluate_task_limit",
        bind="query-params",
        placeholder="all",
        help="Score only this many samples of each task.",
    )
    # 3. What is known of the chosen ones, and a button where data is missing.
    for name in names:
        if name in known:
            st.caption(plain(_facts(known[name])))
    _offer_data(opened, [name for name in names if name in known and known[name].path is None])
    return {"tasks": tuple(names), "task_limit": limit if names else None}


def _choose_names(known: dict[str, TaskListing]) -> list[str]:
    labels = {name: _label(known[name]) if name in known else name for name in tasks.names()}
    return navigation.multiselect(
        LABELS["tasks"],
        labels,
        navigation.distinct_values(url_parameters.query().get_all(FIELD)),
        name=FIELD,
        key=FIELD,
        format_func=lambda name: labels.get(name, name),
        accept_new_options=True,
        placeholder="none",
        help="lm-eval tasks to score: a name of the list, or the path of a YAML file with its data beside it, or of a "
        "folder of such files.",
    )


def _label(task: TaskListing) -> str:
    return f"{task.name} ({task.items:,} items, {_licence(task)})"


def _licence(task: TaskListing) -> str:
    return f"licence {task.licence}"


def _facts(task: TaskListing) -> str:
    return (
        f"{task.name}: {task.title}. {task.items:,} items; guessing reaches {figure(task.floor)}. Data: {task.source}, "
        f"{_licence(task)}."
    )


def _offer_data(opened: Workspace, names: Sequence[str]) -> None:
    """Draw the button that gets the data of these tasks; nothing if there are none."""
    if not names:
        return
    refusal = opened.refusal(Action.GET_TASK)
    clicked = st.button(
        f"Get the data of {listed(names)}",
        key="get_tasks",
        icon=":material/download:",
        disabled=refusal is not None,
        help=message(refusal) if refusal else "Fetches it once, from the hub that HF_ENDPOINT names.",
    )
    if clicked:
        with shell.errors_in_session(REFUSED), st.spinner(f"Getting the data of {listed(names)}"):
            named_tasks.get_missing(opened, names, lambda _: None)
        st.rerun()
    shell.show_session_error(REFUSED)
