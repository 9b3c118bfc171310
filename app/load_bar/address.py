"""The planned load in the address of every page. A page asks `current` for it; the sidebar's bar changes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st
from pydantic import ValidationError

from app import url_parameters
from backend.domain.planner.planned_load import PROFILES, PlannedLoad

PROFILE = "load"
"""Parameter: the name of a profile, or tokens such as `2000-300`."""
FIELDS = {
    "load_file": "workload",
    "load_users": "concurrency",
    "load_rate": "rate",
    "slo_ttft": "max_ttft_ms",
    "slo_tpot": "max_tpot_ms",
    "slo_percentile": "percentile",
    "load_kl": "max_kl",
    "load_target": "target",
    "load_region": "region",
    "load_discount": "discount",
}
"""Parameters and their fields; a discount is a share, and a file the name of an uploaded workload."""
OLD_FIELDS = {"build_prompt": "input_tokens", "build_answer": "output_tokens", "build_streams": "concurrency"}
"""Parameters of Build before all pages had one load; links with them still work."""
OLD_DEFAULTS = {"input_tokens": 512, "output_tokens": 128, "concurrency": 1}
"""The load of an old link that leaves a field out."""
LOAD, SCREEN = "load_current", "load_screen"
"""Session keys: the load, and what was open when it was last read."""


def current() -> PlannedLoad:
    """Return the load of whoever uses the page."""
    load: PlannedLoad = st.session_state.get(LOAD) or PlannedLoad()
    return load


def follow(page: str) -> None:
    """Take the load from the address as a page opens.

    The menu's links have no parameters, so that the session's load goes on; on the open page an address without
    parameters is a step back to the default load.
    """
    # 1. What is open, and what the address says.
    query = url_parameters.query()
    screen = (page, query.get("id"), query.get("job"))
    words = {name: query[name] for name in (PROFILE, *FIELDS, *OLD_FIELDS) if name in query}
    same_screen = st.session_state.get(SCREEN) == screen
    # 2. The address decides where it says anything, or where the same page had a load before.
    load = parse(words) if words or same_screen else current()
    st.session_state[SCREEN] = screen
    store(load)


def parse(words: Mapping[str, str]) -> PlannedLoad:
    """Return the load of these parameters. A wrong value is as if it were not there."""
    # 1. Tokens, by a profile or as numbers; then the other fields.
    fields = _valid({name: words.get(parameter) for parameter, name in OLD_FIELDS.items()})
    fields = {**OLD_DEFAULTS, **fields} if fields else {}
    fields |= _tokens(words.get(PROFILE, ""))
    fields |= _valid({name: words.get(parameter) for parameter, name in FIELDS.items()})
    # 2. Every one was valid by itself, and none depends on another.
    return PlannedLoad.model_validate(fields)


def _tokens(profile: str) -> dict[str, Any]:
    known = PROFILES.get(profile)
    if known:
        return {"input_tokens": known.input_tokens, "output_tokens": known.output_tokens}
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", profile)
    tokens = _valid({"input_tokens": match[1], "output_tokens": match[2]}) if match else {}
    return tokens if len(tokens) == 2 else {}


def _valid(candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose values the record accepts."""
    fields: dict[str, Any] = {}
    for name, value in candidates.items():
        if value is None or value == "":
            continue
        try:
            fields[name] = getattr(PlannedLoad.model_validate({name: value}), name)
        except ValidationError:
            continue
    return fields


def parameters(load: PlannedLoad | None = None) -> dict[str, str]:
    """Return the parameters of a load, the current one without any; what is as by default is left out."""
    load, default = load or current(), PlannedLoad()
    words = {}
    if (load.input_tokens, load.output_tokens) != (default.input_tokens, default.output_tokens):
        words[PROFILE] = load.profile or f"{load.input_tokens}-{load.output_tokens}"
    for parameter, name in FIELDS.items():
        value = getattr(load, name)
        if value is not None and value != getattr(default, name):
            words[parameter] = value if isinstance(value, str) else f"{value:.10g}"
    return words


def store(load: PlannedLoad) -> None:
    """Make this the load of all pages, and write it into the address."""
    st.session_state[LOAD] = load
    words = parameters(load)
    for name in (PROFILE, *FIELDS, *OLD_FIELDS):
        if name in words and url_parameters.query().get(name) != words[name]:
            url_parameters.query()[name] = words[name]
        elif name not in words and name in url_parameters.query():
            del url_parameters.query()[name]
