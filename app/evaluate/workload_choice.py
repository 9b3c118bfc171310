"""Choose the prompts of the load: a bundled workload or an uploaded one, with a preview."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from app import charts, shell, url_parameters
from app.field_labels import LABELS
from app.formatting import message, plain, shorten
from app.load_bar import address
from app.workloads import upload
from backend.domain.errors import WhetstoneError
from backend.domain.figures import counted
from backend.domain.workload.generators import WORKLOAD_KINDS
from backend.present.charts.prompt_lengths import token_histogram
from backend.present.words import workload_reading as words
from backend.service import Workspace
from backend.service.evaluations import workloads
from backend.service.evaluations.workloads import TokenLengths, WorkloadFacts
from backend.service.models import model_names

PREVIEW_CHARACTERS = 240


class ChosenWorkload(NamedTuple):
    """`source` is the name of a workload, or the file of an uploaded one."""

    source: str
    seed: int


def choose(opened: Workspace, tokenizer_of: str | None) -> ChosenWorkload:
    """Draw the choice of prompts and the upload. `tokenizer_of`: the variant that counts tokens."""
    # 1. The workload of the address, else that of the planned load, else what suits the model.
    uploaded = workloads.list_saved(opened)
    choices = [*workloads.names(), *uploaded]
    first = tokenizer_of or model_names.choose_first(opened, list(model_names.list_present(opened)))
    default = workloads.default_workload(opened, first)
    if address.current().workload in uploaded:
        default = str(address.current().workload)
    requested = url_parameters.query().get("workload")
    if requested and requested not in choices:
        missing = plain(shorten(requested, 80))
        st.warning(
            f"There is no workload {missing} here any more: {default} is chosen instead.", icon=":material/help:"
        )
    # 2. The fields.
    left, right = st.columns([3, 1])
    left.selectbox(
        LABELS["workload"],
        choices,
        index=choices.index(requested if requested in choices else default),
        key=f"evaluate_workload_{requested or default}",
        on_change=_write,
        args=(requested, f"evaluate_workload_{requested or default}"),
        format_func=lambda name: f"{name}: {WORKLOAD_KINDS[name].about}" if name in WORKLOAD_KINDS else name,
        help="The prompts of the load. Your own traffic gives the most relevant verdict.",
    )
    seed = right.number_input(
        LABELS["seed"],
        0,
        2**31 - 1,
        0,
        key="evaluate_seed",
        bind="query-params",
        help="For generated workloads, random arrivals and sampling. It is the same for every variant.",
    )
    # 3. Notes, upload and preview.
    chosen = st.session_state[f"evaluate_workload_{requested or default}"]
    source = str(uploaded.get(chosen, chosen))
    if chosen in uploaded:
        _show_reading(opened, source, tokenizer_of, seed)
    with st.expander("Upload a workload"):
        upload.draw(opened, "evaluate", _take_upload)
    if st.toggle("Preview the workload", key="evaluate_preview", bind="query-params"):
        _preview(opened, source, tokenizer_of, seed)
    return ChosenWorkload(source, seed)


def _show_reading(opened: Workspace, source: str, tokenizer_of: str | None, seed: int) -> None:
    """Show what was left out of an upload, what its prompts consist of, and how long a replay takes."""
    try:
        read = workloads.facts_for(opened, source, tokenizer_of, seed)
    except WhetstoneError:
        return  # said where the load is checked
    for sentence_ in words.read_words(read.prompts, read.reading, traced=read.timed):
        st.caption(message(sentence_))


def _write(requested: str | None, key: str) -> None:
    """Write the choice into the address, unless the browser still shows an older list.

    `requested`: the workload in the address when that list was drawn.
    """
    if url_parameters.query().get("workload") == requested:
        url_parameters.query()["workload"] = st.session_state[key]


def _take_upload(name: str) -> None:
    """Choose an uploaded workload, and draw the page with it."""
    url_parameters.query()["workload"] = name
    st.rerun()


def _preview(opened: Workspace, source: str, tokenizer_of: str | None, seed: int) -> None:
    # Read the workload as the evaluation will.
    try:
        workload_facts = workloads.facts_for(opened, source, tokenizer_of, seed)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    # Lengths and what must be known about the lines.
    tokens = workloads.token_lengths(opened, workload_facts, tokenizer_of) if tokenizer_of else None
    shell.show_figures(figures(workload_facts, tokens))
    if workload_facts.conversations:
        st.caption(
            f"{workload_facts.conversations:,} of {workload_facts.prompts:,} are conversations: each turn is sent "
            "when the previous answer has ended, with the whole history. Lengths are those of the first turns."
        )
    if workload_facts.timed:
        st.caption("Every line has a time: choose the load Trace to replay it.")
    # Lengths in tokens, if the first variant has a tokenizer here.
    if tokens is None:
        st.caption("Lengths in tokens need a model or artifact on this machine as first variant.")
    else:
        charts.show(token_histogram(tokens.lengths, workload_facts.name, tokens.model, charts.theme()), "token-lengths")
    # The first lines.
    rows = preview_rows(workload_facts, tokens)
    st.dataframe(rows, hide_index=True, alt=f"The first {len(rows)} prompts with their lengths")


def figures(workload_facts: WorkloadFacts, tokens: TokenLengths | None) -> list[tuple[str, str, str | None]]:
    """Return (label, value, source) of each figure."""
    cells: list[tuple[str, str, str | None]] = [("Prompts", f"{workload_facts.prompts:,}", None)]
    if tokens is not None:
        which = "all prompts" if tokens.counted == workload_facts.prompts else f"the first {tokens.counted:,} prompts"
        basis = f"{which}, by the tokenizer of {tokens.model}"
        cells += [("Median length", f"{tokens.p50:,} tokens", basis), ("Longest", f"{tokens.largest:,} tokens", basis)]
    else:
        cells += [
            ("Median length", counted(workload_facts.characters_p50, "character"), None),
            ("Longest", counted(workload_facts.characters_max, "character"), None),
        ]
    return cells


def preview_rows(workload_facts: WorkloadFacts, tokens: TokenLengths | None) -> list[dict[str, Any]]:
    """Return the first prompts, each with its length."""
    rows, has_lengths = [], any(prompt.max_tokens for prompt in workload_facts.first)
    for number, prompt in enumerate(workload_facts.first):
        counted: dict[str, Any] = {"Tokens": tokens.lengths[number]} if tokens and number < len(tokens.lengths) else {}
        longest: dict[str, Any] = {"Longest answer": prompt.max_tokens} if has_lengths else {}
        rows.append(
            {**counted, "Characters": len(prompt.prompt), **longest, "Prompt": prompt.prompt[:PREVIEW_CHARACTERS]}
        )
    return rows
