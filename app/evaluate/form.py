"""The form of an evaluation: variants, load and price. Choices are in the URL; the service checks them again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import idempotency, model_field, navigation, shell, url_parameters
from app.evaluate import engine_fields, option_fields, setting_fields
from app.evaluate import load_fields as evaluate_load
from app.evaluate.load_fields import RAMP, RATE, SEARCH, STREAMS, TRACE
from app.evaluate.workload_choice import ChosenWorkload
from app.field_labels import LABELS, error_sentence
from app.formatting import duration_range, local_time, message
from app.load_bar import address
from app.serving import engine_select
from app.summaries import model_source
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.evaluation.outcome import EQUIVALENCE
from backend.domain.figures import counted
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.load.options import BLOCKS_FOR_VERDICT
from backend.domain.recipe.serving.source_settings import remove_settings
from backend.present import evaluate_command as evaluate_command
from backend.present.source_names import distinct_labels, short_name
from backend.present.words import engines, repeat_counts
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, progress
from backend.service.models import model_names, variants
from backend.service.serving import local_endpoints

PURPOSE, REFUSED = "evaluate", "evaluate_refused"
MOST_VARIANTS = 16
HIGHEST_PRICE = 1e9
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Name of an environment variable."""
FORM_PARAMETERS = ("new", "variants", "workload")
"""Parameters of an address that asks for the form, besides those of the options."""
TYPED = ("concurrency", "rate")
"""Text fields, which `load_fields` parses."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Either a `spec` that can be submitted, or the `obstacle` that says why not."""

    spec: EvaluateSpec | None = None
    obstacle: str | None = None


def is_requested() -> bool:
    """Tell whether the address asks for the form of a new evaluation: by `new`, or by what it is filled in with."""
    fields = {f"{PURPOSE}_{name}" for name in EvaluateOptions.model_fields}
    return not fields.union(FORM_PARAMETERS).isdisjoint(url_parameters.query())


def suggest_variants(opened: Workspace) -> str:
    """Return the newest artifact that runs here beside its model, as a parameter of the address; empty without one."""
    for view in artifacts.variants(opened, limit=1):
        if not variants.why_unserved(opened, view.id):
            return navigation.join_values(model_source(view.manifest.parent), view.id)
    return ""


def choose_variants(opened: Workspace) -> list[str]:
    """Draw the field of variants; the first is the baseline."""
    # Offer models and artifacts here, with a readable label for each artifact.
    known = model_names.list_present(opened)
    labels = known | {
        item.id: f"{item.recipe} of {short_name(item.model)}, {local_time(item.created_at)} ({item.id})"
        for item in artifacts.variants(opened)
    }
    # The field, with what the address has even if it is unknown.
    selected = navigation.distinct_values(url_parameters.query().get_all("variants"))
    labels = distinct_labels({source: _label(source, labels) for source in [*labels, *selected]})
    chosen = navigation.multiselect(
        "Variants (the first is the baseline)",
        labels,
        selected,
        name="variants",
        key="evaluate_variants",
        resolve=lambda text: model_field.resolve_typed(opened, text, known, labels),
        format_func=lambda name: labels.get(name, name),
        accept_new_options=True,
        placeholder="Choose, or type a folder or URL",
        help=(
            "Models, artifacts, folders, the URL of an OpenAI-compatible endpoint, or a SageMaker endpoint: "
            "sagemaker:NAME@REGION."
        ),
    )
    # The engine of each, and one more with another setting.
    engine_fields.choose_engines(opened, chosen)
    setting_fields.draw(opened, labels, chosen)
    return chosen


def _label(source: str, labels: dict[str, str]) -> str:
    """Return the label of a variant, with the engine and the settings that it names."""
    name = remove_settings(source)
    try:
        return engine_select.named_on(labels.get(name) or short_name(name), source)
    except WhetstoneError:  # an engine or a setting that is none: the check says so
        return source


def repeat_parameters(document: Evaluation) -> dict[str, str]:
    """Return the address parameters for the same variants, the check included."""
    sources = [result.variant.source for result in document.variants]
    return {"variants": navigation.join_values(*sources)} | (
        {"evaluate_twice": "true"} if sources[1:2] == sources[:1] else {}
    )


def choose_load() -> dict[str, Any]:
    """Draw load, repeats, price and quality. Return fields of the options, not yet checked."""
    # 1. The load, its repeats, the length of answers and the number of requests.
    url: dict[str, Any] = {"bind": "query-params"}
    values = evaluate_load.choose()
    left, middle, right = st.columns(3)
    repeats = left.container()
    longest = evaluate_load.planned_values(address.current())["evaluate_max_tokens"]
    values["max_tokens"] = middle.number_input(
        LABELS["max_tokens"], 1, evaluate_load.MOST_ANSWER, longest, key="evaluate_max_tokens", **url
    )
    if values["way"] != RAMP:
        values["requests"] = right.number_input(
            LABELS["requests"],
            **option_fields.number_limits("requests"),
            value=None,
            key="evaluate_requests",
            placeholder=_default_requests(values["way"]),
            **url,
            help=("Without warm-up. Empty is the number shown here, at least eight, or as many as the seconds allow."),
        )
    # 2. The price.
    left, middle, _ = st.columns(3)  # a second row: one below the other on a telephone, in this order
    values["price_per_hour"] = left.number_input(
        LABELS["price_per_hour"],
        0.0,
        HIGHEST_PRICE,
        value=None,
        format="%.4f",
        key="evaluate_price",
        placeholder="none",
        **url,
        help="Cost of the machine per hour. Empty: no prices.",
    )
    values["discount"] = (
        middle.number_input(
            LABELS["discount"], 0.0, 99.0, 0.0, key="evaluate_discount", help="Off the hourly price.", **url
        )
        / 100
    )
    # 3. Quality, and the baseline as a check; a search has no repeats.
    quality = st.checkbox(
        LABELS["quality"], True, key="evaluate_quality", help="Perplexity, KL divergence, greedy match.", **url
    )
    if values["way"] != SEARCH:
        values |= _repeats(repeats, url)
        values["twice"] = st.checkbox(
            "Measure the baseline twice, as a check",
            False,
            key="evaluate_twice",
            **url,
            help=(
                "The baseline runs again under a second name. It should show no significant difference to "
                "itself: if it does, this machine is too noisy for small differences."
            ),
        )
    # 4. The rest, folded.
    with st.expander("More of the load"):
        more = option_fields.draw_rest(values["way"])
    if values.get("repeats", BLOCKS_FOR_VERDICT) < BLOCKS_FOR_VERDICT:
        st.caption(f"With fewer than {BLOCKS_FOR_VERDICT} repeats there are figures but no verdict.")
    return {**values, **more, "quality": quality}


def _repeats(place: DeltaGenerator, url: dict[str, Any]) -> dict[str, Any]:
    """Draw the number of repeats in `place`, and below the choice to repeat until the result is conclusive."""
    # Repeat until the result is conclusive, at most so often.
    if st.checkbox(
        LABELS["until_decided"],
        False,
        key="evaluate_until_decided",
        **url,
        help=(
            "Repeats are added until each variant's throughput is shown to be faster, slower or the same within "
            f"{EQUIVALENCE:.0%} of the baseline, or within the share that you choose below. The times and levels of "
            "the tests are fixed in advance, so that chance finds no extra differences."
        ),
    ):
        most = place.number_input(
            LABELS["max_blocks"],
            stopping_rule.FIRST_TEST,
            1000,
            EvaluateOptions().max_blocks,
            key="evaluate_max_blocks",
            **url,
            help="The most repeats. With fewer, it may also end sooner.",
        )
        return {"until_decided": True, "max_blocks": most}
    # Or repeat a fixed number of times.
    repeats = place.number_input(
        LABELS["repeats"],
        1,
        100,
        BLOCKS_FOR_VERDICT,
        key="evaluate_repeats",
        **url,
        help=f"How often each level runs. A verdict needs at least {BLOCKS_FOR_VERDICT}.",
    )
    return {"repeats": repeats}


def choose_token(sources: Sequence[str]) -> dict[str, Any]:
    """Ask for the variable that holds the bearer token of external endpoints. Return the option if a variant is a URL.

    The token itself is never typed here, and the name is not in the address, since somebody might paste the token.
    """
    # Only an endpoint elsewhere may need a token.
    if not any(source.startswith(("http://", "https://")) for source in sources):
        return {}
    # Ask for the name of the variable.
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
    # Refuse what looks like the token itself.
    if written and not VARIABLE.fullmatch(written):
        st.error(
            "That is not a name of an environment variable: give its name, never the token itself.",
            icon=":material/error:",
        )
        return {}
    return {"bearer_env": written or None}


def measured_sources(sources: list[str], chosen: dict[str, Any]) -> list[str]:
    """Return the variants as they are measured; with the check the baseline is also the second one (A/A)."""
    return [*sources[:1], *sources] if chosen.get("twice") else sources


def _default_requests(kind: str) -> str:
    return {STREAMS: "three per stream", RATE: "ten seconds of the rate", TRACE: "all lines"}.get(
        kind, "as many as it takes"
    )


def check(opened: Workspace, sources: list[str], workload: ChosenWorkload, values: dict[str, Any]) -> EvaluationRequest:
    """Return the request after every check that needs no start."""
    # 1. Check the number of variants.
    if not sources:
        return EvaluationRequest(obstacle="Choose at least one variant; with two or more there is a verdict.")
    if len(sources) > MOST_VARIANTS:
        return EvaluationRequest(
            obstacle=f"{len(sources)} variants are too many for one evaluation: choose at most {MOST_VARIANTS}."
        )
    # 2. Check the options and the variants.
    try:
        chosen_options = {
            name: value for name, value in values.items() if name in EvaluateOptions.model_fields and name not in TYPED
        }
        chosen_options |= evaluate_load.as_options(values)
        chosen = evaluations.read_options(**chosen_options, workload=workload.source, seed=workload.seed)
        return EvaluationRequest(spec=evaluations.prepare(opened, sources, chosen, anyway=bool(values.get("anyway"))))
    except WhetstoneError as error:
        return EvaluationRequest(obstacle=error_sentence(error))


def show_outlook(opened: Workspace, request: EvaluationRequest, sources: list[str]) -> None:
    """Show what a click will do, or why it cannot, within the first screen."""
    if request.spec:
        took = None if request.spec.options.sweep else progress.expected_evaluation_time(opened, request.spec)
        st.success(
            f"{extent_sentence(request.spec)} {duration_sentence(request.spec, took)}", icon=":material/check_circle:"
        )
        for sentence in engines.choice_sentences(request.spec.variants):
            st.caption(message(sentence))
        for sentence in engines.sharing_sentences(local_endpoints.list_loaded(opened)):
            st.warning(message(sentence), icon=":material/dns:")
    elif sources:
        notice = st.info if opened.read_only else st.error
        notice(message(request.obstacle), icon=":material/block:")
    else:
        st.info(
            "Choose the variants to measure. The verdict, charts and table appear here.",
            icon=":material/info:",
        )


def extent_sentence(spec: EvaluateSpec) -> str:
    """Return the amount of work in words."""
    chosen: EvaluateOptions = spec.options
    variants_ = counted(len(spec.variants), "variant")
    if chosen.sweep:
        first, objectives = chosen.loads[0].words, " and ".join(chosen.sweep)
        return (
            f"{variants_}, searched from {first} for the highest load with {objectives}. It runs alone on the machine."
        )
    levels = len(chosen.loads)
    runs = len(spec.variants) * levels * chosen.most_blocks
    parts = f"{variants_} x {counted(levels, 'level')} x {repeat_counts.planned_repeats(chosen)}"
    most = "at most " if chosen.until_decided else ""
    return f"{parts} = {most}{counted(runs, 'run')}. It runs alone on the machine."


def show_command(request: EvaluationRequest, sources: list[str], *, ruined: bool) -> None:
    """Show the same evaluation as a command."""
    if request.spec:
        text = evaluate_command.command(sources, request.spec.options)
        with st.expander("The same as a command", icon=":material/terminal:"):
            st.code(f"{text} --anyway" if ruined else text, language=None, wrap_lines=True)


def duration_sentence(spec: EvaluateSpec, took: TimeLeft | None) -> str:
    """Return the expected duration, or that it is unknown."""
    if spec.options.sweep:
        return "How long a search takes depends on where it ends."
    if took is None:
        return "How long it takes is unknown: nothing has been evaluated here yet."
    words = duration_range(took.low, took.high)
    return f"{words[:1].upper()}{words[1:]}, {took.basis}, whatever their load was."


def submit_button(opened: Workspace, request: EvaluationRequest) -> None:
    """Draw the button that submits one job per request, however often it is clicked."""
    clicked = st.button(
        "Evaluate",
        type="primary",
        key="evaluate_submit",
        icon=":material/speed:",
        shortcut="Ctrl+Enter",
        disabled=request.spec is None,
        help=message(request.obstacle) if request.obstacle else None,
    )
    # no callback, which would be given what stood here before the field typed in last was read
    if clicked and request.spec:
        _submit(opened, request.spec)
        st.rerun()
    shell.show_session_error(REFUSED)


def _submit(opened: Workspace, spec: EvaluateSpec) -> None:
    """Submit the job. If this very request has ended before, it is submitted again under a new key."""
    mark = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
    with shell.errors_in_session(REFUSED):
        job = evaluations.submit(opened, spec, submission=idempotency.submission_key(PURPOSE, mark))
        if job.ended:
            idempotency.renew(PURPOSE)
            job = evaluations.submit(opened, spec, submission=idempotency.submission_key(PURPOSE, mark))
        url_parameters.query().replace({"job": job.id})
