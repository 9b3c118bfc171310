"""What an evaluation is asked: variants, workload, load and price. Choices live in the URL; the service checks them all again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app import once
from app.words import plain, when
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation import EvaluateOptions
from backend.domain.jobs import EvaluateSpec
from backend.service import Workspace, artifacts, evaluations, models, workloads

PURPOSE, UPLOADED = "evaluate", "evaluate_uploaded"
BLOCKS_FOR_VERDICT = 5
PREVIEW_LINES, PREVIEW_CHARACTERS = 20, 240


@dataclass(frozen=True)
class Asked:
    """`spec` is what can be submitted; without it `obstacle` says why not."""

    spec: EvaluateSpec | None = None
    obstacle: str | None = None


def names_in(values: list[str]) -> list[str]:
    """The URL's variants: `?variants=a,b` or the parameter several times; each once, in order."""
    return list(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))


def levels_in(words: str) -> tuple[int, ...]:
    """`1, 4, 16` as numbers. Raises InvalidOptions."""
    try:
        return tuple(int(part) for part in words.replace(" ", ",").split(",") if part)
    except ValueError:
        raise evaluations.InvalidOptions(f"Concurrency is wrong: `{words}` is not a list such as 1, 4, 16.") from None


def sentence(error: WhetstoneError) -> str:
    """The service's sentence without the command line's dashes."""
    words = str(error).removeprefix("--")
    return words[:1].upper() + words[1:]


def variants(opened: Workspace) -> list[str]:
    """Choose what is measured; the first is the baseline."""
    made = {item.id: f"{item.recipe} of {item.model}, {when(item.created_at)} ({item.id})" for item in artifacts.listing(opened)}
    known = [model.source for model in models.known(opened) if model.present]
    asked = names_in(st.query_params.get_all("variants"))
    choices = list(dict.fromkeys([*known, *made, *asked]))
    if st.session_state.get("evaluate_variants") != asked:  # the address was changed by a link or by Back
        st.session_state["evaluate_variants"] = asked
    st.multiselect(
        "Variants (the first is the baseline)", choices, key="evaluate_variants", accept_new_options=True,
        format_func=lambda name: made.get(name, name), on_change=_write_variants, placeholder="Choose, or type a folder or URL",
        help="Models, artifacts, folders, or the URL of an OpenAI-compatible endpoint.",
    )  # fmt: skip
    return list(st.session_state["evaluate_variants"])


def _write_variants() -> None:
    chosen = st.session_state["evaluate_variants"]
    if chosen:
        st.query_params["variants"] = ",".join(chosen)
    elif "variants" in st.query_params:
        del st.query_params["variants"]


def workload(opened: Workspace) -> str:
    """Choose the prompts, or bring one's own; its source for the service."""
    uploaded = workloads.saved(opened)
    choices = [*workloads.names(), *uploaded]
    asked = st.query_params.get("workload")
    if asked and asked not in choices:
        st.warning(f"There is no workload {plain(asked)} here any more: {choices[0]} is chosen instead.", icon=":material/help:")
    st.selectbox(
        "Workload", choices, index=choices.index(asked) if asked in choices else 0, key=f"evaluate_workload_{asked}",
        on_change=_write_workload, args=(f"evaluate_workload_{asked}",),
        help="The prompts that the load is made of. Your own traffic gives the verdict that counts for you.",
    )  # fmt: skip
    chosen = st.session_state[f"evaluate_workload_{asked}"]
    with st.expander("Upload a workload"):
        _upload(opened)
    source = str(uploaded.get(chosen, chosen))
    if st.toggle("Preview the workload", key="evaluate_preview"):
        _preview(source)
    return source


def _write_workload(key: str) -> None:
    st.query_params["workload"] = st.session_state[key]


def _upload(opened: Workspace) -> None:
    st.caption('JSONL: one object a line with a "prompt" and, if you like, "max_tokens". It is kept under the studio\'s home.')
    file = st.file_uploader("JSONL file", type=["jsonl"], key="evaluate_file")
    if file is None or st.session_state.get(UPLOADED) == file.file_id:
        return
    try:
        kept = workloads.save(opened, file.name, file.getvalue())
    except WhetstoneError as error:
        st.error(str(error), icon=":material/error:")
        return
    st.session_state[UPLOADED] = file.file_id
    st.query_params["workload"] = kept
    st.rerun()


def _preview(source: str) -> None:
    try:
        read = workloads.read(source)
    except WhetstoneError as error:
        st.error(str(error), icon=":material/error:")
        return
    about = read.about()
    with st.container(horizontal=True):
        st.metric("Prompts", f"{about['prompts']:,}")
        st.metric("Median length", f"{about['prompt_characters_p50']:,} characters")
        st.metric("Longest", f"{about['prompt_characters_max']:,} characters")
    rows = [
        {"Characters": len(p.prompt), "Max tokens": p.max_tokens, "Prompt": p.prompt[:PREVIEW_CHARACTERS]}
        for p in read.prompts[:PREVIEW_LINES]
    ]
    st.dataframe(rows, hide_index=True, alt=f"The first {len(rows)} prompts with their lengths")
    st.caption("Tokens are counted by the server while it is measured: a length in tokens is not known before.")


def load() -> dict[str, Any]:
    """How much load, how often, at what price: fields of the options, not yet checked."""
    url: dict[str, Any] = {"bind": "query-params"}
    left, middle, right = st.columns(3)
    found: dict[str, Any] = {
        "concurrency": left.text_input(
            "Concurrency (streams)", "1, 4", key="concurrency", help="Levels, such as 1, 4, 16.", **url
        ),
        "repeats": middle.number_input(
            "Repeats", 1, 100, 5, key="repeats", help="Times each level runs; a verdict takes five or more.", **url
        ),
        "max_tokens": right.number_input("Longest answer (tokens)", 1, 32768, 64, key="max_tokens", **url),
        "price_per_hour": left.number_input(
            "Price per hour",
            0.0,
            value=None,
            format="%.4f",
            key="price",
            placeholder="none",
            **url,
            help="What an hour of the machine costs, in your currency; empty leaves prices out.",
        ),
        "discount": middle.number_input("Discount (%)", 0.0, 99.0, 0.0, key="discount", help="Off the hourly price.", **url)
        / 100,
        "requests": right.number_input(
            "Requests a run",
            1,
            value=None,
            key="requests",
            placeholder="four a stream",
            **url,
            help="Without the warm-up; empty is four a stream and at least eight.",
        ),
        "quality": st.checkbox(
            "Measure quality too", True, key="quality", help="Perplexity, KL divergence, greedy match.", **url
        ),
    }
    if found["repeats"] < BLOCKS_FOR_VERDICT:
        st.caption(f"With fewer than {BLOCKS_FOR_VERDICT} repeats there are figures but no verdict.")
    return found


def ask(opened: Workspace, sources: list[str], workload_source: str, fields: dict[str, Any]) -> Asked:
    """All that can be checked before the start."""
    if not sources:
        return Asked(obstacle="Choose at least one variant; with two or more there is a verdict.")
    try:
        levels = levels_in(fields["concurrency"])
        chosen = evaluations.options(**{**fields, "concurrency": levels, "workload": workload_source})
        return Asked(spec=evaluations.prepare(opened, sources, chosen))
    except WhetstoneError as error:
        return Asked(obstacle=sentence(error))


def extent(spec: EvaluateSpec) -> str:
    """How much work that is, in words."""
    chosen: EvaluateOptions = spec.options
    variants_, levels = len(spec.variants), len(chosen.concurrency)
    runs = variants_ * levels * chosen.repeats
    each = [(variants_, "variant"), (levels, "level"), (chosen.repeats, "repeat")]
    parts = " x ".join(f"{number} {name}{'' if number == 1 else 's'}" for number, name in each)
    return f"{parts} = {runs} run{'' if runs == 1 else 's'}. It runs alone on the machine."


def fingerprint(spec: EvaluateSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def submit_button(opened: Workspace, asked: Asked) -> None:
    """One job for one question, however often it is clicked."""
    mark = fingerprint(asked.spec) if asked.spec else ""
    clicked = st.button(
        "Evaluate", type="primary", key="evaluate", icon=":material/speed:", shortcut="Ctrl+Enter", disabled=asked.spec is None,
        help=asked.obstacle,
    )  # fmt: skip
    if clicked and asked.spec:  # no callback, which would be given what stood here before the field typed in last was read
        _submit(opened, asked.spec, mark)
        st.rerun()
    if refused := st.session_state.pop("evaluate_refused", None):
        st.error(refused, icon=":material/error:")


def _submit(opened: Workspace, spec: EvaluateSpec, mark: str) -> None:
    try:
        job = evaluations.submit(opened, spec, submission=once.key(PURPOSE, mark))
    except WhetstoneError as error:
        st.session_state["evaluate_refused"] = sentence(error)
    else:
        st.query_params.from_dict({"job": job.id})
