"""Upload a workload: the one form of it, on Evaluate and in the bar of the planned load."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.field_labels import LABELS, error_sentence
from app.formatting import message, plain
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.figures import counted
from backend.domain.roles import Action
from backend.domain.workload.row_parser import PROMPT_COLUMNS
from backend.domain.workload.trace_times import UNIT_NAMES, TimeUnit
from backend.service import Workspace
from backend.service.evaluations import workload_files, workloads
from backend.service.serving import recorded_requests

OTHER_COLUMNS = (
    (
        "max_tokens",
        "Column of the longest answers",
        "Tokens for each row. Without it, the longest answer below applies to all.",
    ),
    ("system", "Column of the system prompt", ("The system prompt, sent before the prompt. Without it, none is sent.")),
    (
        "timestamp",
        "Column of the times",
        "Numbers, or times such as 2026-01-31T12:00:00, to replay the rows as a trace.",
    ),
)
TIME_UNITS: dict[str, TimeUnit] = {"as the file says": "auto", **{name: unit for unit, name in UNIT_NAMES.items()}}


def draw(opened: Workspace, prefix: str, put: Callable[[str], None]) -> None:
    """Draw the upload. A file is read once, whether it is accepted or refused; for a table the columns are confirmed
    first. `prefix`: of the keys of its fields. `put` gets the name of the stored workload."""
    # 1. The file, or what the gateway recorded.
    if recorded_requests.has_content(opened):
        _draw_recorded(opened, prefix, put)
    st.caption(
        'JSONL with a "prompt" per line, ShareGPT or OpenAI conversations, a table, or a trace of lengths (Azure,'
        " BurstGPT, Mooncake). Rows that cannot be used are left out and listed, at most one in ten."
    )
    uploaded, refusal = f"{prefix}_uploaded", f"{prefix}_upload_refused"
    unit = TIME_UNITS[
        st.selectbox(
            LABELS["time_unit"],
            list(TIME_UNITS),
            key=f"{prefix}_time_unit",
            help="Needed for whole numbers, which may be seconds or milliseconds.",
        )
    ]
    types = [suffix.removeprefix(".") for suffix in workload_files.SUFFIXES]
    file = st.file_uploader("File", type=types, key=f"{prefix}_file", **disabled_unless_allowed(opened, Action.UPLOAD))
    if file is None or st.session_state.get(uploaded) == file.file_id:
        return
    # 2. Read its first rows; a table needs its columns.
    try:
        preview = workload_files.preview(file.name, file.getvalue())
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    ready, chosen = _columns(preview, prefix) if preview.columns else (True, {})
    # 3. Store it once per file and columns.
    mark = f"{file.file_id} {chosen} {unit}"
    refused = st.session_state.get(refusal, ("", ""))
    if refused[0] != mark and not ready:
        return
    if refused[0] != mark:
        try:
            name = workloads.save(opened, file.name, file.getvalue(), chosen, unit)
        except WhetstoneError as error:
            refused = st.session_state[refusal] = (mark, error_sentence(error))
        else:
            st.session_state[uploaded] = file.file_id
            put(name)
            return
    st.error(message(refused[1]), icon=":material/error:")


def _draw_recorded(opened: Workspace, prefix: str, put: Callable[[str], None]) -> None:
    """Draw the button that makes a workload of the gateway's request log."""
    button = st.button(
        "Use what the gateway recorded",
        key=f"{prefix}_recorded",
        icon=":material/history:",
        help="Your own traffic as a workload: the requests in this studio's gateway log whose content was recorded.",
        **disabled_unless_allowed(opened, Action.UPLOAD),
    )
    if not button:
        return
    try:
        summary = recorded_requests.make_workload(opened)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    sentences = f"{counted(summary.requests, 'request')} became {counted(summary.conversations, 'line')}."
    st.toast(plain(f"{sentences} {recorded_requests.left_out_words(summary.left_out)}"))
    put(summary.name)


def _columns(preview: workload_files.Preview, prefix: str) -> tuple[bool, dict[str, str]]:
    """Draw the columns of a table. Return whether they were just confirmed, and the column of each field."""
    # Show the first rows, so that columns can be recognized.
    columns, rows = preview
    st.dataframe(rows, hide_index=True, alt=f"The first {len(rows)} rows of the file")
    # Guess the column of the prompt; the others are left empty.
    guess = next((columns.index(name) for name in PROMPT_COLUMNS if name in columns), 0)
    left, right = st.columns(2)
    columns_by_field = {
        "prompt": left.selectbox(LABELS["columns"], columns, index=guess, key=f"{prefix}_column_prompt")
    }
    for place, (field, label, help_) in zip((right, left, right), OTHER_COLUMNS, strict=True):
        columns_by_field[field] = place.selectbox(
            label,
            columns,
            index=None,
            key=f"{prefix}_column_{field.removeprefix('max_')}",
            placeholder="none",
            help=help_,
        )
    # Take what was chosen on request.
    confirmed = st.button("Use these columns", key=f"{prefix}_columns")
    return confirmed, {field: column for field, column in columns_by_field.items() if column}
