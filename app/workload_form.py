"""Which prompts the load is made of: a bundled workload, or one's own, looked at before it is used."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import shell
from app.words import message, plain, short
from backend.domain.errors import WhetstoneError
from backend.service import Workspace, workloads
from backend.service.workloads import TokenLengths, WorkloadFacts

UPLOADED, REFUSED = "evaluate_uploaded", "evaluate_upload_refused"
PREVIEW_CHARACTERS = 240


def choose(opened: Workspace, tokenizer_of: str | None) -> str:
    """Choose the prompts, or bring one's own; its source for the service. `tokenizer_of`: the variant that counts tokens."""
    uploaded = workloads.saved(opened)
    choices = [*workloads.names(), *uploaded]
    asked = st.query_params.get("workload")
    if asked and asked not in choices:
        gone = plain(short(asked, 80))
        st.warning(f"There is no workload {gone} here any more: {choices[0]} is chosen instead.", icon=":material/help:")
    st.selectbox(
        "Workload", choices, index=choices.index(asked) if asked in choices else 0, key=f"evaluate_workload_{asked}",
        on_change=_write, args=(f"evaluate_workload_{asked}",),
        help="The prompts that the load is made of. Your own traffic gives the verdict that counts for you.",
    )  # fmt: skip
    chosen = st.session_state[f"evaluate_workload_{asked}"]
    source = str(uploaded.get(chosen, chosen))
    with st.expander("Upload a workload"):
        _upload(opened)
    if st.toggle("Preview the workload", key="preview", bind="query-params"):
        _preview(opened, source, tokenizer_of)
    return source


def _write(key: str) -> None:
    st.query_params["workload"] = st.session_state[key]


def _upload(opened: Workspace) -> None:
    """A file is read once, whether it is kept or refused; of a table one says first which column is the prompt."""
    st.caption(
        'JSONL with a "prompt" a line, ShareGPT or OpenAI conversations, or a table. Kept as JSONL under the studio\'s home.'
    )
    types = [suffix.removeprefix(".") for suffix in workloads.SUFFIXES]
    file = st.file_uploader("File", type=types, key="evaluate_file")
    if file is None or st.session_state.get(UPLOADED) == file.file_id:
        return
    try:
        columns = workloads.columns(file.name, file.getvalue())
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    ready, chosen = _columns(columns) if columns else (True, {})
    mark = f"{file.file_id} {chosen}"
    refused = st.session_state.get(REFUSED, ("", ""))
    if refused[0] != mark and not ready:
        return
    if refused[0] != mark:
        try:
            kept = workloads.save(opened, file.name, file.getvalue(), chosen)
        except WhetstoneError as error:
            refused = st.session_state[REFUSED] = (mark, str(error))
        else:
            st.session_state[UPLOADED] = file.file_id
            st.query_params["workload"] = kept
            st.rerun()
    st.error(message(refused[1]), icon=":material/error:")


def _columns(columns: list[str]) -> tuple[bool, dict[str, str]]:
    """Whether it was just confirmed, and which column is what."""
    left, right = st.columns(2)
    guess = next((columns.index(name) for name in workloads.PROMPT_COLUMNS if name in columns), 0)
    prompt = left.selectbox("Column of the prompts", columns, index=guess, key="evaluate_column_prompt")
    length = right.selectbox(
        "Column of the longest answers", columns, index=None, key="evaluate_column_tokens", placeholder="none",
        help="Tokens, for each row; without it the longest answer below holds for all.",
    )  # fmt: skip
    confirmed = st.button("Use these columns", key="evaluate_columns")
    return confirmed, {"prompt": prompt, **({"max_tokens": length} if length else {})}


def _preview(opened: Workspace, source: str, tokenizer_of: str | None) -> None:
    try:
        found = workloads.facts_for(opened, source, tokenizer_of)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    tokens = workloads.token_lengths(opened, found, tokenizer_of) if tokenizer_of else None
    shell.figures(figures(found, tokens))
    rows = preview_rows(found, tokens)
    st.dataframe(rows, hide_index=True, alt=f"The first {len(rows)} prompts with their lengths")
    if tokens is None:
        st.caption("Lengths in tokens stand here once the first variant is a model or artifact on this machine.")


def figures(found: WorkloadFacts, tokens: TokenLengths | None) -> list[tuple[str, str, str | None]]:
    """(label, value, how it is known)."""
    cells: list[tuple[str, str, str | None]] = [("Prompts", f"{found.prompts:,}", None)]
    if tokens is not None:
        which = "all prompts" if tokens.counted == found.prompts else f"the first {tokens.counted:,} prompts"
        basis = f"{which}, by the tokenizer of {tokens.model}"
        cells += [("Median length", f"{tokens.p50:,} tokens", basis), ("Longest", f"{tokens.largest:,} tokens", basis)]
    else:
        cells += [
            ("Median length", f"{found.characters_p50:,} characters", None),
            ("Longest", f"{found.characters_max:,} characters", None),
        ]
    return cells


def preview_rows(found: WorkloadFacts, tokens: TokenLengths | None) -> list[dict[str, Any]]:
    """The first prompts, each with its length."""
    rows, own = [], any(prompt.max_tokens for prompt in found.first)
    for number, prompt in enumerate(found.first):
        counted: dict[str, Any] = {"Tokens": tokens.first[number]} if tokens and number < len(tokens.first) else {}
        asked: dict[str, Any] = {"Longest answer": prompt.max_tokens} if own else {}
        rows.append({**counted, "Characters": len(prompt.prompt), **asked, "Prompt": prompt.prompt[:PREVIEW_CHARACTERS]})
    return rows
