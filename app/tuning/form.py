"""The form of a search: model, goal, budget; limits and floor are those of the planned load."""

from __future__ import annotations

import streamlit as st

from app import idempotency, navigation, shell, url_parameters
from app.field_labels import LABELS, error_sentence
from app.formatting import message, plain
from app.load_bar import address
from app.session import disabled_unless_allowed
from backend.domain.errors import InvalidOptions, WhetstoneError
from backend.domain.figures import counted, listed
from backend.domain.limits.slo import Slo
from backend.domain.planner.planned_load import PlannedLoad
from backend.domain.recipe.serving_engines import ENGINES
from backend.domain.tuning.request import GOAL_WORDS, TuneRequest
from backend.domain.tuning.rivals import AUTO_TUNE
from backend.domain.tuning.stacks import WEIGHTS, SpaceChoice
from backend.domain.validation import validate_fields
from backend.present import tune_command
from backend.service import Workspace
from backend.service.models import model_names
from backend.service.tuning import tunings

PURPOSE = "tune"
DEFAULTS = TuneRequest(model="")
MINUTES = (5, 10, 20, 40, 60, 120, 240, 480)


def draw(opened: Workspace) -> None:
    """Draw the form, and begin the search that it asks for."""
    # 1. Model and goal.
    labels = model_names.list_present(opened)
    if not labels:
        st.info("A search measures a model on this machine: import one first.", icon=":material/info:")
        navigation.link("import", "Import a model", ":material/folder_open:")
        return
    requested = url_parameters.query().get("model")
    sources = list(labels)
    first = requested if requested in labels else model_names.choose_first(opened, sources)
    left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
    model = left.selectbox(
        "Model",
        sources,
        index=sources.index(first) if first in sources else 0,
        key="tune_model",
        format_func=lambda source: labels.get(source, source),
    )
    goal = middle.selectbox(
        "Goal",
        list(GOAL_WORDS),
        key="tune_goal",
        bind="query-params",
        format_func=lambda name: GOAL_WORDS[name][0].upper() + GOAL_WORDS[name][1:],
    )
    minutes = right.selectbox(
        "Budget (minutes)",
        MINUTES,
        index=2,
        key="tune_budget",
        help="The time of all its jobs. What still runs when it is over is ended.",
    )
    # 2. What is wider or narrower than usual.
    with st.expander("Engines, weights, disk and rivals"):
        engines = st.multiselect("Engines", list(ENGINES), key="tune_engines", placeholder="all that are installed")
        weights = st.multiselect(
            "Weights",
            list(WEIGHTS),
            key="tune_weights",
            placeholder="all that the rules allow here",
            format_func=lambda key: WEIGHTS[key].title,
        )
        disk = st.number_input("Disk for weights (GB)", 0.1, 10_000.0, 5.0, key="tune_disk")
        against = st.multiselect(
            "Race against",
            [AUTO_TUNE],
            key="tune_against",
            accept_new_options=True,
            placeholder="the engine's defaults alone",
            format_func=lambda name: "what vLLM's auto_tune picks" if name == AUTO_TUNE else name,
            help="What races against the winner: vLLM's own rule, which measures eight pairs of settings, or the "
            "source of a stack of yours, such as `starter@max_num_seqs=8`.",
        )
    quality = _choose_quality()
    load = address.current()
    st.caption(plain(limit_words(load)))
    # 3. The request, checked as it will be.
    space = SpaceChoice(engines=tuple(engines), weights=tuple(weights))
    fields = _fields(model, goal, minutes, space, disk, load) | {"against": tuple(against), **quality}
    try:
        request = validate_fields(TuneRequest, fields, InvalidOptions)
        plan = tunings.plan(opened, request)
    except WhetstoneError as error:
        notice = st.info if opened.read_only else st.error
        notice(message(error_sentence(error)), icon=":material/block:")
        return
    st.caption(
        f"{counted(len(plan.stacks), 'stack')} can be tried against {plain(plan.baseline)}, the likeliest first. Each "
        "trial is an evaluation that stays."
    )
    if st.button(
        "Find the best stack",
        type="primary",
        icon=":material/tune:",
        key="tune_begin",
        **disabled_unless_allowed(opened),
    ):
        with shell.errors_inline():
            url_parameters.query().replace({"id": _begin_once(opened, request)})
            st.rerun()
    with st.expander("The same as a command"):
        st.code(tune_command.command(request), language="bash", wrap_lines=True)


def _choose_quality() -> dict[str, object]:
    """Draw limits of quality besides the KL divergence of Your load. Return fields of the request."""
    with st.expander("Length of answers and tasks"):
        left, middle, right = st.columns(3)
        percent = left.number_input(
            "Length of answers, within (%)",
            1,
            1000,
            None,
            key="tune_length",
            placeholder="not limited",
            help="On average, against those of the original. The model ends its answers itself then.",
        )
        written = middle.text_input(
            LABELS["tasks"],
            key="tune_tasks",
            placeholder="none",
            help="lm-eval tasks that are scored on what is served, as on Evaluate. Separate several with commas.",
        )
        loss = right.number_input(
            "Most that a score may lose",
            0.001,
            1.0,
            DEFAULTS.max_task_loss,
            key="tune_task-loss",
            help="Against the original's, in the unit of the score: 0.02 is two points of an accuracy.",
        )
    tasks = tuple(part.strip() for part in written.split(",") if part.strip())
    return {"max_length_change": percent and percent / 100, "tasks": tasks, "max_task_loss": loss}


def _begin_once(opened: Workspace, request: TuneRequest) -> str:
    """Begin the search and return its id; a double click is one search."""
    idempotency.submission_key(PURPOSE, request.model_dump_json(), for_s=idempotency.DOUBLE_CLICK_S)
    search_id = idempotency.submitted_job(PURPOSE, request.model_dump_json())
    if search_id is None:
        search_id = tunings.begin(opened, request).id
        idempotency.remember_job(PURPOSE, search_id)
    return search_id


def _fields(
    model: str,
    goal: str,
    minutes: float,
    space: SpaceChoice,
    disk: float,
    load: PlannedLoad,
) -> dict[str, object]:
    """Return the fields of the request. The planned load gives limits, floor and the highest number of streams."""
    return {
        "model": model,
        "goal": goal,
        "budget_min": float(minutes),
        "disk_gb": disk,
        "space": space,
        "limits": load.limits,
        "max_kl": load.max_kl,
        "streams": tuple(sorted({1, min(load.expected.concurrency, 64)})) if load.expected.concurrency > 1 else (1, 4),
    }


def limit_words(load: PlannedLoad) -> str:
    """Return the limits and the floor of the planned load in one line."""
    words = limit_texts(load.limits, load.max_kl)
    if not words:
        return "No limits: set latency limits and a quality floor under Your load, in the sidebar."
    return f"Within {listed(words)}, from Your load in the sidebar."


def limit_texts(limits: Slo, max_kl: float | None) -> list[str]:
    """Return each limit in words: `TTFT p95 up to 300 ms`."""
    words = [
        f"{limit.metric.removesuffix('_ms').upper()} {limits.percentile} up to {limit.most_ms:,.0f} ms"
        for limit in limits.latency_limits
    ]
    return words + ([f"KL divergence up to {max_kl:g}"] if max_kl is not None else [])
