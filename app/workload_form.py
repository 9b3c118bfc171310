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
    """A file is read once, whether it is kept or refused."""
    st.caption('JSONL: one object a line with a "prompt" and, if you like, "max_tokens". It is kept under the studio\'s home.')
    file = st.file_uploader("JSONL file", type=["jsonl"], key="evaluate_file")
    if file is None or st.session_state.get(UPLOADED) == file.file_id:
        return
    refused = st.session_state.get(REFUSED, ("", ""))
    if refused[0] != file.file_id:
        try:
            kept = workloads.save(opened, file.name, file.getvalue())
        except WhetstoneError as error:
            refused = st.session_state[REFUSED] = (file.file_id, str(error))
        else:
            st.session_state[UPLOADED] = file.file_id
            st.query_params["workload"] = kept
            st.rerun()
    st.error(message(refused[1]), icon=":material/error:")


def _preview(opened: Workspace, source: str, tokenizer_of: str | None) -> None:
    try:
        found = workloads.facts(source)
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
