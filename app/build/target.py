"""What the recipe being built is for: the target, the expected load, and for `auto` the goal. All of it is in the address.

Knows nothing of what the planner answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from backend.domain.machine.device import Instance
from backend.domain.machine.targets import slug
from backend.domain.planner.choose import Goal
from backend.domain.planner.roofline import ExpectedLoad
from backend.service import Workspace
from backend.service.machines import machine, targets

TARGET = "build_target"
LONGEST = 200
"""Characters of a target in the address that are taken."""
MOST_TOKENS, MOST_STREAMS = 1_000_000, 4096
GOALS = {
    "cost": "lowest price an hour",
    "throughput": "lowest price a token",
    "latency": "lowest time per output token",
}
LIMITS = {
    "max_ttft_ms": "Time to first token at most (ms)",
    "max_tpot_ms": "Time per output token at most (ms)",
    "min_output_tokens_per_s": "Output tokens/s at least",
    "min_context": "Context at least (tokens)",
}


class Asked(NamedTuple):
    """`price` is USD an hour, for a place that publishes none."""

    target: str
    load: ExpectedLoad = ExpectedLoad()
    goal: Goal = Goal()
    price: float | None = None


def choose(opened: Workspace) -> str:
    """Choose the target; whether there is such a one is the planner's to say."""
    names = labels(opened)
    wanted = (st.query_params.get("target") or st.session_state.get(TARGET) or "local")[:LONGEST]
    choices = list(names) if wanted in names else [wanted, *names]
    chosen = st.selectbox(
        "Target", choices, index=choices.index(wanted), accept_new_options=True, key=f"build-target-{wanted}",
        format_func=lambda name: names.get(name, name),
        help="Where the result is to be served. Jobs run on this machine; everything else is for planning.",
    )  # fmt: skip
    put(chosen or wanted)
    return chosen or wanted


def put(target: str) -> None:
    st.session_state[TARGET] = target
    if st.query_params.get("target") != target:
        st.query_params["target"] = target


def labels(opened: Workspace) -> dict[str, str]:
    """Every target that can be chosen here, in words."""
    known, here = targets.hardwares(opened), machine.show(opened)
    found = {"local": "This machine", "auto": "auto: the cheapest instance that will do"}
    if here.accelerators:
        found["local:cpu"] = "local:cpu, this machine's processor"
    found |= {f"local:gpu{number}": f"local:gpu{number}, {gpu.name}" for number, gpu in enumerate(here.accelerators)}
    found |= {name: f"{name}, {_instance(row)}" for name, row in known.instances.items()}
    found |= {f"accelerator:{slug(card)}": f"accelerator:{slug(card)}, one {card}" for card in known.accelerators}
    return found | {f"sagemaker:{name}": f"sagemaker:{name}, by the managed toolkit" for name in known.instances}


def _instance(row: Instance) -> str:
    price = f"{row.sagemaker_usd_per_hour:,.4g} USD/h" if row.sagemaker_usd_per_hour else "no price published"
    return f"{row.accelerator_count} x {row.accelerator}, {price}"


def streams() -> int:
    """Requests at once, which decide speed and price more than anything else of the load."""
    return _whole("Requests at once", "build_streams", 1, MOST_STREAMS)


def expected(target: str, at_once: int) -> Asked:
    """The load, and what else the estimate on that target needs. A wrong value of the address is as if it were not there."""
    with st.expander("Load and goal" if target == "auto" else "Expected load", icon=":material/tune:"):
        load = _load(at_once)
        price = _price() if target.startswith(("local", "accelerator")) else None
        goal = _goal() if target == "auto" else Goal()
    return Asked(target, load, goal, price)


def _load(at_once: int) -> ExpectedLoad:
    prompt, answer = st.columns(2)
    with prompt:
        tokens_in = _whole("Prompt tokens", "build_prompt", 512, MOST_TOKENS)
    with answer:
        tokens_out = _whole("Answer tokens", "build_answer", 128, MOST_TOKENS)
    return ExpectedLoad(input_tokens=tokens_in, output_tokens=tokens_out, concurrency=at_once)


def _whole(label: str, key: str, default: int, most: int) -> int:
    return int(st.number_input(label, 1, most, default, key=key, bind="query-params"))


def _price() -> float | None:
    found: float | None = st.number_input(
        "Price per hour (USD)", 0.0, None, None, key="build_price", bind="query-params", placeholder="none published",
        help="What an hour of this machine costs you; the price per token follows from it.",
    )  # fmt: skip
    return found


def _goal() -> Goal:
    meant = "; ".join(f"{name}: {words}" for name, words in GOALS.items())
    wanted = st.selectbox("What is wanted", list(GOALS), key="build_goal", bind="query-params", help=f"{meant}.")
    limits: dict[str, Any] = {}
    left, right = st.columns(2)
    for number, (name, label) in enumerate(LIMITS.items()):
        with (left, right)[number % 2]:
            value = st.number_input(label, 1, None, None, key=f"build_{name}", bind="query-params", placeholder="no limit")
            limits[name] = value or None
    return Goal.model_validate({"wanted": wanted, **limits})
