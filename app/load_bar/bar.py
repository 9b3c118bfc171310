"""The bar in the sidebar that sets the load once for all pages: a line that says it, and a popover that edits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.formatting import plain
from app.load_bar import address
from backend.domain.machine import price_list
from backend.domain.machine.device import Instance
from backend.domain.planner.planned_load import (
    HIGHEST_LIMIT_MS,
    MOST_CONCURRENCY,
    MOST_DISCOUNT,
    MOST_KL,
    MOST_TOKENS,
    PROFILES,
    PlannedLoad,
)
from backend.present import load_words
from backend.service import Workspace
from backend.service.machines import targets

HERE = "local"
PROFILE_FIELD = "load_profile"
NUMBERS: dict[str, str] = {
    "load_input": "input_tokens",
    "load_output": "output_tokens",
    "load_concurrency": "concurrency",
    "load_ttft": "max_ttft_ms",
    "load_tpot": "max_tpot_ms",
    "load_max_kl": "max_kl",
}
"""Keys of number fields and what they hold."""
PLACE_FIELD, DISCOUNT_FIELD = "load_place", "load_percent"
UNSET: dict[str, Any] = {"value": None, "placeholder": "none"}


def draw(opened: Workspace) -> None:
    """Draw the bar. A change is in the address at once, and the page below is drawn with it."""
    # 1. An instance that does not exist is as if none were chosen.
    known = targets.hardwares(opened).instances
    load = address.current()
    if load.target not in {None, HERE, *known}:
        load = load.model_copy(update={"target": None})
        address.store(load)
    # 2. The fields, then the line.
    _fill(load)
    with st.sidebar, st.container(key="load_bar"):
        with st.popover("Your load", icon=":material/tune:", width="stretch", key="load_popover"):
            _draw_requests(load)
            _draw_limits()
            _draw_place(known, load, opened.settings.discount)
        st.caption(plain(load_words.summary(load)))


def _fill(load: PlannedLoad) -> None:
    """Give the fields the values of the load, which a link or Back may have changed."""
    values: dict[str, Any] = {key: getattr(load, name) for key, name in NUMBERS.items()}
    values[PROFILE_FIELD] = load.profile
    values[PLACE_FIELD] = load.target
    values[DISCOUNT_FIELD] = None if load.discount is None else round(load.discount * 100, 4)
    for key, value in values.items():
        if key not in st.session_state or st.session_state[key] != value:
            st.session_state[key] = value


def _draw_requests(load: PlannedLoad) -> None:
    """Draw the profile, the tokens of a request and the concurrent requests."""
    names = [*PROFILES] if load.profile else [*PROFILES, None]
    st.selectbox(
        "Workload",
        names,
        key=PROFILE_FIELD,
        format_func=load_words.profile_title,
        on_change=_take_profile,
        help="\n".join(f"- {known.title}: {known.about}" for known in PROFILES.values()),
    )
    left, right = st.columns(2)
    left.number_input("Tokens in", 1, MOST_TOKENS, key="load_input", on_change=_take)
    right.number_input("Tokens out", 1, MOST_TOKENS, key="load_output", on_change=_take)
    st.number_input(
        "Users at once",
        1,
        MOST_CONCURRENCY,
        key="load_concurrency",
        on_change=_take,
        help="Concurrent requests: each user sends the next request when the answer is complete.",
    )


def _draw_limits() -> None:
    """Draw the latency limits and the quality floor."""
    left, right = st.columns(2)
    limit: dict[str, Any] = {"min_value": 0.0, "max_value": HIGHEST_LIMIT_MS, "format": "%g", "on_change": _take}
    left.number_input("TTFT p95, at most (ms)", key="load_ttft", help=load_words.LIMITS_HELP, **UNSET, **limit)
    right.number_input("TPOT p95, at most (ms)", key="load_tpot", help=load_words.LIMITS_HELP, **UNSET, **limit)
    st.number_input(
        "Quality floor: KL divergence, at most",
        0.0,
        MOST_KL,
        key="load_max_kl",
        format="%g",
        on_change=_take,
        help="Mean KL divergence from the original, in nats per token.",
        **UNSET,
    )


def _draw_place(known: Mapping[str, Instance], load: PlannedLoad, discount: float) -> None:
    """Draw where it runs, and the discount off published prices. `discount`: the one in force, as a share."""
    st.selectbox(
        "Runs on",
        [HERE, *known],
        key=PLACE_FIELD,
        index=None,
        format_func=lambda name: "This machine" if name == HERE else name,
        placeholder="Each page's own choice",
        on_change=_take,
    )
    st.number_input(
        "Discount (%)",
        0.0,
        MOST_DISCOUNT * 100,
        value=None,
        key=DISCOUNT_FIELD,
        format="%g",
        placeholder=f"{discount * 100:.4g}",
        on_change=_take,
        help="Off every published price per hour.",
    )
    instance = known.get(load.target or "")
    note = price_list.price_note(instance) if instance else None
    if note:
        st.caption(plain(f"Price: {note}."))


def _take_profile() -> None:
    """Take the tokens of the chosen profile."""
    known = PROFILES.get(st.session_state[PROFILE_FIELD])
    if known:
        st.session_state["load_input"], st.session_state["load_output"] = known.input_tokens, known.output_tokens
    _take()


def _take() -> None:
    """Make what the fields say the load of all pages. An empty number of tokens or users stays as it was."""
    default = address.current()
    values: dict[str, Any] = {name: st.session_state[key] for key, name in NUMBERS.items()}
    for name in ("input_tokens", "output_tokens", "concurrency"):
        values[name] = values[name] or getattr(default, name)
    percent = st.session_state[DISCOUNT_FIELD]
    values["target"] = st.session_state[PLACE_FIELD]
    values["discount"] = None if percent is None else percent / 100
    address.store(PlannedLoad.model_validate(values))
