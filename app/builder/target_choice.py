"""Choose the target of the recipe, its price per hour, and the goal of `auto`. All of it is in the address.

The load is that of the bar in the sidebar."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from app import url_parameters
from app.formatting import message
from app.load_bar import address
from backend.domain.machine import price_list
from backend.domain.machine.device import Instance
from backend.domain.machine.targets import LOCAL_CPU, hardware_name, slug, target_kind, target_name
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.planned_load import PlannedLoad, fit_context
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal
from backend.present import load_words
from backend.service import Workspace
from backend.service.machines import machine, targets

TARGET, PLACE, PLANNED = "build_target", "build_place", "build_planned"
LONGEST = 200
"""Characters of a target in the address that are read."""
HIGHEST = 1e9
"""The highest price, and the highest limit in milliseconds."""
GOALS = {
    "cost": "lowest price per hour",
    "throughput": "lowest price per token",
    "latency": "lowest time per output token",
}
LIMITS = {
    "max_ttft_ms": "Time to first token at most (ms)",
    "max_tpot_ms": "Time per output token at most (ms)",
    "min_output_tokens_per_s": "Output tokens/s at least",
    "min_context": "Context at least (tokens)",
}


PLACES = {"local": "This machine", "instance": "An instance", "sagemaker": "SageMaker", "neuron": "Neuron"}
"""Kinds of targets: the places where the job runs and its result is served."""
TARGET_LABELS = {
    "local": "Device of this machine",
    "instance": "Instance or accelerator",
    "sagemaker": "SageMaker instance",
    "neuron": "Neuron instance",
}
"""Label of the field that says which target of that kind."""
HELPS = (
    "This machine: made and served here. An instance: made here, planned for that instance or card. SageMaker: "
    "made by AWS's own toolkit in your account. Neuron: compiled here ahead of time, for Inferentia and Trainium."
)


class PlanRequest(NamedTuple):
    """The target, load and goal of an estimate.

    `price` is USD per hour, for a target without a published price; `aws` are the settings of a SageMaker job,
    NAME=VALUE.
    """

    target: str
    load: ExpectedLoad = ExpectedLoad()
    goal: TargetGoal = TargetGoal()
    price: float | None = None
    aws: tuple[str, ...] = ()


def choose(opened: Workspace) -> str:
    """Draw the targets of the chosen kind. Return the selected one; whether it exists is checked by the planner."""
    # Offer the targets of the chosen kind, and the one of the address even if it is unknown.
    current = _selected_target()
    names = {name: words for name, words in target_labels(opened).items() if _place(name) == _place(current)}
    choices = list(names) if current in names else [current, *names]
    # Draw the field; other names can be typed.
    chosen = st.selectbox(
        TARGET_LABELS[_place(current)],
        choices,
        index=choices.index(current),
        accept_new_options=True,
        key=f"build-target-{current}",
        format_func=lambda name: names.get(name, name),
        help="Where the result is served. Any target can also be typed.",
    )
    set_target(chosen or current)
    return chosen or current


def choose_kind(opened: Workspace) -> None:
    """Draw the choice of this machine, an instance, SageMaker or Neuron; the instance type is preserved if it exists
    there."""
    _follow_load()
    st.session_state[PLACE] = _place(_selected_target())
    st.radio(
        "Run on",
        list(PLACES),
        format_func=PLACES.__getitem__,
        key=PLACE,
        horizontal=True,
        help=HELPS,
        on_change=_change_kind,
        args=(opened,),
    )


def _follow_load() -> None:
    """Take the place of the planned load once it changes, unless a link says another."""
    planned, linked = address.current().target, url_parameters.query().get("target")
    changed = st.session_state.get(PLANNED, planned) != planned
    st.session_state[PLANNED] = planned
    if changed and planned and linked in {None, st.session_state.get(TARGET)}:
        set_target(planned)


def _change_kind(opened: Workspace) -> None:
    there = st.session_state[PLACE]
    names = [name for name in target_labels(opened) if _place(name) == there]
    instance = hardware_name(_selected_target())
    same = next((name for name in names if hardware_name(name) == instance), None)
    set_target(same or names[0])


def _selected_target() -> str:
    chosen = url_parameters.query().get("target") or st.session_state.get(TARGET) or address.current().target
    return str(chosen or "local")[:LONGEST]


def _place(target: str) -> str:
    """Return the entry of PLACES to which a target belongs."""
    kind = target_kind(target)
    return kind if kind in PLACES else "instance"


def set_target(target: str) -> None:
    st.session_state[TARGET] = target
    if url_parameters.query().get("target") != target:
        url_parameters.query()["target"] = target


def target_labels(opened: Workspace) -> dict[str, str]:
    """Return every target that can be chosen here with its label."""
    known, here = targets.hardwares(opened), machine.show(opened)
    # 1. This machine and its devices.
    labels = {"local": "This machine", "auto": "auto: lowest hourly price that fits"}
    if here.accelerators:
        labels[LOCAL_CPU] = f"{LOCAL_CPU}, this machine's processor"
    for number, gpu in enumerate(here.accelerators):
        name = target_name("local", f"gpu{number}")
        labels[name] = f"{name}, {gpu.name}"
    # 2. Instances, accelerators, and AWS's own ways to run on an instance.
    instances = {name: f"{name}, {_instance(row)}" for name, row in known.instances.items()}
    cards = {target_name("accelerator", slug(card)): card for card in known.accelerators}
    return {
        **labels,
        **instances,
        **{name: f"{name}, one {card}" for name, card in cards.items()},
        **{target_name("sagemaker", name): words for name, words in instances.items()},
        **{target_name("neuron", name): instances[name] for name in known.neuron},
    }


def _instance(row: Instance) -> str:
    known = row.sagemaker_usd_per_hour
    none = "no price published" if row.price_region is None else f"no price in {row.price_region}"
    price = f"{known:,.4g} USD/h{price_list.discount_text(row.discount)}" if known else none
    return f"{row.accelerator_count} x {row.accelerator}, {price}"


def choose_request(target: str, model: ModelFacts, aws: tuple[str, ...] = ()) -> PlanRequest:
    """Draw what the estimate needs besides the load. A wrong value in the address is ignored."""
    # 1. The load of the sidebar, shortened if the model takes less.
    planned = address.current()
    load = fit_context(planned.expected, model.max_positions)
    if words := load_words.shortened(planned.expected, load):
        st.warning(message(words), icon=":material/warning:")
    # 2. The price and the goal, where the target has none.
    price, goal = None, TargetGoal()
    if target_kind(target) in {"local", "accelerator"} or target == "auto":
        with st.expander("Goal" if target == "auto" else "Price per hour (USD)", icon=":material/tune:"):
            if target == "auto":
                goal = _goal(planned)
            else:
                price = _price()
    return PlanRequest(target, load, goal, price, aws)


def _price() -> float | None:
    price: float | None = st.number_input(
        "Price per hour (USD)",
        0.0,
        HIGHEST,
        None,
        key="build_price",
        bind="query-params",
        placeholder="none published",
        help="Your cost of this machine per hour, for the price per token.",
    )
    return price


def _goal(planned: PlannedLoad) -> TargetGoal:
    """Draw the goal; an empty latency limit is that of the planned load."""
    help_ = "; ".join(f"{name}: {words}" for name, words in GOALS.items())
    metric = st.selectbox("Goal", list(GOALS), key="build_goal", bind="query-params", help=f"{help_}.")
    values: dict[str, Any] = {"wanted": metric}
    columns = st.columns(2)
    for number, (name, label) in enumerate(LIMITS.items()):
        own = getattr(planned, name, None)
        placeholder = f"{own:g}, your load" if own else "no limit"
        options: dict[str, Any] = {"key": f"build_{name}", "bind": "query-params", "placeholder": placeholder}
        values[name] = columns[number % 2].number_input(label, 1, int(HIGHEST), None, **options) or own
    return TargetGoal.model_validate(values)
