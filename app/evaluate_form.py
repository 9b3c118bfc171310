"""What an evaluation is asked: variants, workload, load and price. Choices live in the URL; the service checks them all again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import navigation, once
from app.words import between, message, short, when
from backend.domain.errors import WhetstoneError
from backend.domain.eta import Range
from backend.domain.evaluation import EvaluateOptions
from backend.domain.jobs import EvaluateSpec
from backend.service import Workspace, artifacts, evaluations, models, watching

PURPOSE = "evaluate"
BLOCKS_FOR_VERDICT = 5
MOST_VARIANTS = 16
CLOSED = "when an answer has ended"
PROCESSES = {CLOSED: "constant", "by the clock, evenly": "constant", "by the clock, at random moments": "poisson"}
INTERLEAVE = ("auto", "resident", "restart")


@dataclass(frozen=True)
class Asked:
    """`spec` is what can be submitted; without it `obstacle` says why not."""

    spec: EvaluateSpec | None = None
    obstacle: str | None = None


def names_in(values: list[str]) -> list[str]:
    """The URL's variants: `?variants=a,b` or the parameter several times; each once, in order."""
    return list(dict.fromkeys(name for value in values for name in navigation.parts(value)))


def levels_in(words: str) -> tuple[int, ...]:
    """`1, 4, 16` as numbers. Raises InvalidOptions."""
    try:
        return tuple(int(part) for part in words.replace(" ", ",").split(",") if part)
    except ValueError:
        shown = short(words, 60)
        raise evaluations.InvalidOptions(f"Concurrency is wrong: `{shown}` is not a list such as 1, 4, 16.") from None


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
        st.query_params["variants"] = navigation.several(*chosen)
    else:
        st.query_params.pop("variants", None)


def load() -> dict[str, Any]:
    """How much load, how often, at what price: fields of the options, not yet checked."""
    left, middle, right = st.columns(3)
    url: dict[str, Any] = {"bind": "query-params"}
    found: dict[str, Any] = {
        **_levels(left, url),
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
            placeholder="four a stream" if _is_closed() else "ten seconds of the rate",
            **url,
            help="Without the warm-up; empty is what stands here, at least eight, or as many as the seconds allow.",
        ),
    }
    quality = st.checkbox("Measure quality too", True, key="quality", help="Perplexity, KL divergence, greedy match.", **url)
    with st.expander("More of the load"):
        more = _more(url)
    if found["repeats"] < BLOCKS_FOR_VERDICT:
        st.caption(f"With fewer than {BLOCKS_FOR_VERDICT} repeats there are figures but no verdict.")
    return {**found, **more, "quality": quality}


def _levels(place: DeltaGenerator, url: dict[str, Any]) -> dict[str, Any]:
    """The levels, in words that `ask` reads; what they mean is chosen among what is rarely changed, further down."""
    if _is_closed():
        help_ = "Levels, such as 1, 4, 16."
        return {"concurrency": place.text_input("Concurrency (streams)", "1, 4", key="concurrency", help=help_, **url)}
    help_ = "Levels, such as 2, 8. Latency counts from the moment a request was due."
    return {"rate": place.text_input("Requests a second", "2, 8", key="rate", help=help_, **url)}


def _is_closed() -> bool:
    """What was chosen further down, as the address has it."""
    return st.query_params.get("sent", CLOSED) not in set(PROCESSES) - {CLOSED}


def rates_in(words: str) -> tuple[float, ...]:
    """`2, 8` as numbers. Raises InvalidOptions."""
    try:
        found = tuple(float(part) for part in words.replace(" ", ",").split(",") if part)
    except ValueError:
        found = ()
    if not found:
        raise evaluations.InvalidOptions(f"Requests a second is wrong: `{short(words, 60)}` is not a list such as 2, 8.")
    return found


def _more(url: dict[str, Any]) -> dict[str, Any]:
    """What is rarely changed, at the options' own defaults."""
    default = EvaluateOptions()
    left, middle, right = st.columns(3)
    return {
        "seconds": left.number_input(
            "Seconds a run", 1.0, 3600.0, value=None, step=1.0, key="seconds", placeholder="no limit", **url,
            help="A run ends after so much steady load, or after its requests, whichever comes first.",
        ),
        "warmup_requests": middle.number_input(
            "Warm-up requests a stream", 0, 100, default.warmup_requests, key="warmup", **url,
            help="Before each run; not counted.",
        ),
        "timeout_s": right.number_input(
            "Longest wait for an answer (s)", 1.0, 3600.0, default.timeout_s, step=1.0, key="timeout", **url,
            help="An answer that takes longer counts as an error.",
        ),
        "temperature": left.number_input(
            "Temperature", 0.0, 2.0, default.temperature, 0.1, key="temperature", **url,
            help="0 is greedy: the same answer each time.",
        ),
        "seed": middle.number_input("Seed", 0, 2**31 - 1, default.seed, key="seed", **url, help="The same for every variant."),
        "input_output_ratio": right.number_input(
            "Input tokens an output token", 0.01, 1000.0, default.input_output_ratio, key="ratio", **url,
            help="For the blended price.",
        ),
        "process": PROCESSES[
            left.selectbox(
                "Requests are sent", list(PROCESSES), key="sent", **url,
                help="When an answer has ended: a fixed number of streams. By the clock: at a rate, however slow the server is.",
            )
        ],
        "endpoint": middle.selectbox("Endpoint", ("completions", "chat"), key="endpoint", **url),
        "interleave": st.selectbox(
            "Servers", INTERLEAVE, key="interleave", **url,
            help="resident: all servers up, one loaded at a time. restart: one after another. auto: resident if they fit.",
        ),
    }  # fmt: skip


def ask(opened: Workspace, sources: list[str], workload_source: str, fields: dict[str, Any]) -> Asked:
    """All that can be checked before the start."""
    if not sources:
        return Asked(obstacle="Choose at least one variant; with two or more there is a verdict.")
    if len(sources) > MOST_VARIANTS:
        return Asked(obstacle=f"{len(sources)} variants are too many for one evaluation: choose at most {MOST_VARIANTS}.")
    try:
        chosen = evaluations.options(**{**fields, **_numbers(fields), "workload": workload_source})
        return Asked(spec=evaluations.prepare(opened, sources, chosen))
    except WhetstoneError as error:
        return Asked(obstacle=sentence(error))


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """The levels as numbers, and how requests are spread. Raises InvalidOptions."""
    if "rate" in fields:
        return {"rate": rates_in(fields["rate"])}
    return {"concurrency": levels_in(fields["concurrency"]), "process": "constant"}


def outlook(opened: Workspace, asked: Asked, sources: list[str]) -> None:
    """What will happen on the click, or why it cannot: in the first screenful."""
    if asked.spec:
        took = watching.expected_evaluation(opened, asked.spec)
        st.success(f"{extent(asked.spec)} {duration(asked.spec, took)}", icon=":material/check_circle:")
    elif sources:
        st.error(message(asked.obstacle), icon=":material/block:")
    else:
        st.info("The verdict, the charts and the table will stand here. Choose the variants to measure.", icon=":material/info:")


def extent(spec: EvaluateSpec) -> str:
    """How much work that is, in words."""
    chosen: EvaluateOptions = spec.options
    variants_, levels = len(spec.variants), len(chosen.rate or chosen.concurrency)
    runs = variants_ * levels * chosen.repeats
    each = [(variants_, "variant"), (levels, "level"), (chosen.repeats, "repeat")]
    parts = " x ".join(f"{number} {name}{'' if number == 1 else 's'}" for number, name in each)
    return f"{parts} = {runs} run{'' if runs == 1 else 's'}. It runs alone on the machine."


def duration(spec: EvaluateSpec, took: Range | None) -> str:
    """How long about; what is not known is said."""
    if took is None:
        return "How long it takes is unknown: nothing has been evaluated here yet."
    words = between(took.low, took.high)
    return f"{words[:1].upper()}{words[1:]}, {took.basis}, whatever their load was."


def fingerprint(spec: EvaluateSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def submit_button(opened: Workspace, asked: Asked) -> None:
    """One job for one question, however often it is clicked."""
    mark = fingerprint(asked.spec) if asked.spec else ""
    clicked = st.button(
        "Evaluate", type="primary", key="evaluate", icon=":material/speed:", shortcut="Ctrl+Enter", disabled=asked.spec is None,
        help=message(asked.obstacle) if asked.obstacle else None,
    )  # fmt: skip
    if clicked and asked.spec:  # no callback, which would be given what stood here before the field typed in last was read
        _submit(opened, asked.spec, mark)
        st.rerun()
    if refused := st.session_state.pop("evaluate_refused", None):
        st.error(message(refused), icon=":material/error:")


def _submit(opened: Workspace, spec: EvaluateSpec, mark: str) -> None:
    """A job of this very question that has ended is no double click: the question is asked anew."""
    try:
        job = evaluations.submit(opened, spec, submission=once.key(PURPOSE, mark))
        if job.ended:
            once.renew(PURPOSE)
            job = evaluations.submit(opened, spec, submission=once.key(PURPOSE, mark))
    except WhetstoneError as error:
        st.session_state["evaluate_refused"] = sentence(error)
    else:
        st.query_params.from_dict({"job": job.id})
