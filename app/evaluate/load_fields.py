"""Draw the kinds of load, when to use each, and their fields. Choices are in the URL.

`as_options` turns the fields into options and draws nothing.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.field_labels import LABELS
from app.formatting import shorten
from app.load_bar import address, field_values
from backend.domain.errors import InvalidOptions
from backend.domain.limits.latency_limit import PERCENTILES
from backend.domain.planner.planned_load import PlannedLoad
from backend.present import load_words

URL: dict[str, Any] = {"bind": "query-params"}


STREAMS, RATE, RAMP, SEARCH, TRACE = "Streams", "Rate", "Ramp", "Search", "Trace"
KINDS = {
    STREAMS: (
        "A fixed number of users who each wait for their answer before they send the next request. Use it to"
        " compare variants: each level is paired and gets a verdict."
    ),
    RATE: (
        "Requests arrive by the clock, however slow the server is, and latency counts from when each was due. "
        "Use it for many people who do not wait for each other."
    ),
    RAMP: ("The rate rises evenly from one value to another. Use it for a first look at where latency starts rising."),
    SEARCH: (
        "Finds the highest load that meets your limits, and the knee. Use it to size a server. Each variant "
        "is searched by itself, so there is no verdict between them."
    ),
    TRACE: (
        "Each line of the workload is sent at its own time. Use it to replay your own traffic: every line "
        'needs a "timestamp" in seconds.'
    ),
}
"""Kinds of load, and when to use each."""
ARRIVALS = {"evenly": "constant", "at random moments": "poisson"}
OVER = ("streams", "requests a second")
SHARES = tuple(int(percentile.removeprefix("p")) for percentile in PERCENTILES)
SHORT_ANSWER, MOST_ANSWER = 64, 32768
"""Tokens of an answer: of a short measurement, and at most."""
SHORT_LOAD: dict[str, Any] = {
    "evaluate_load": STREAMS,
    "evaluate_concurrency": "1, 4",
    "evaluate_rate": "2, 8",
    "evaluate_max_tokens": SHORT_ANSWER,
}
"""Fields of a short measurement, by key."""
LIMITS = {"ttft": "Time to first token", "tpot": "Inter-token latency", "latency": "Whole answer"}


def choose() -> dict[str, Any]:
    """Draw the kind of load and its fields. Return what was typed, not yet checked."""
    begin = _follow_planned_load()["evaluate_load"]
    names = list(KINDS)
    chosen = st.radio("Load", names, names.index(begin), horizontal=True, key="evaluate_load", **URL)
    kind = chosen or STREAMS
    st.caption(KINDS[kind])
    _offer_planned_load()
    draw = {STREAMS: _streams, RATE: _rate, RAMP: _ramp, SEARCH: _search, TRACE: dict}
    return {"way": kind, **draw[kind]()}


def planned_values(load: PlannedLoad) -> dict[str, Any]:
    """Return the values with which fields begin under a planned load, by key; those of a short measurement if nobody
    changed the load."""
    limits: dict[str, Any] = {
        "evaluate_search_ttft": load.max_ttft_ms or None,
        "evaluate_search_tpot": load.max_tpot_ms or None,
        "evaluate_search_share": int(load.percentile.removeprefix("p")),
    }
    if load.expected == PlannedLoad().expected:
        return SHORT_LOAD | limits
    return full_load(load) | limits


def full_load(load: PlannedLoad) -> dict[str, Any]:
    """Return kind, streams or rate, and tokens of the planned load itself, by key; one stream is measured beside
    several."""
    levels = "1" if load.concurrency == 1 else f"1, {load.concurrency}"
    return {
        "evaluate_load": STREAMS if load.rate is None else RATE,
        "evaluate_concurrency": levels,
        "evaluate_rate": SHORT_LOAD["evaluate_rate"] if load.rate is None else f"{load.rate:.10g}",
        "evaluate_max_tokens": min(load.output_tokens, MOST_ANSWER),
    }


def _follow_planned_load() -> dict[str, Any]:
    """Let fields follow the planned load. Return the values with which they begin, by key."""
    values = planned_values(address.current())
    for key, value in values.items():
        field_values.follow_load(key, value)
    return values


def _offer_planned_load() -> None:
    """Offer the planned load where the fields measure less."""
    load = address.current()
    if load.expected == PlannedLoad().expected:
        st.button(
            f"Measure your load: {load_words.requests(load)}",
            key="evaluate_use-load",
            type="tertiary",
            icon=":material/tune:",
            on_click=lambda: st.session_state.update(full_load(load)),
            help="The fields begin with a short measurement. The prompts are those of the workload chosen above.",
        )


def _streams() -> dict[str, Any]:
    return {
        "concurrency": st.text_input(
            LABELS["concurrency"],
            planned_values(address.current())["evaluate_concurrency"],
            key="evaluate_concurrency",
            help="Levels, such as 1, 4, 16.",
            **URL,
        )
    }


def _rate() -> dict[str, Any]:
    left, right = st.columns(2)
    return {
        "rate": left.text_input(
            LABELS["rate"],
            planned_values(address.current())["evaluate_rate"],
            key="evaluate_rate",
            help="Levels, such as 2, 8.",
            **URL,
        ),
        "arrivals": _arrivals(right),
    }


def _arrivals(place: Any) -> str:
    help_ = "At random moments (a Poisson process), like many independent people."
    return str(place.selectbox(LABELS["process"], list(ARRIVALS), key="evaluate_arrivals", help=help_, **URL))


def _ramp() -> dict[str, Any]:
    first, second, third, fourth = st.columns(4, vertical_alignment="bottom")
    return {
        "ramp_from": first.number_input(
            "From (requests per second)", 0.0, 100_000.0, 1.0, key="evaluate_ramp_from", **URL
        ),
        "ramp_to": second.number_input(
            "To (requests per second)", 0.01, 100_000.0, 20.0, key="evaluate_ramp_to", **URL
        ),
        "ramp_seconds": third.number_input("Over (seconds)", 1.0, 3600.0, 30.0, key="evaluate_ramp_seconds", **URL),
        "arrivals": _arrivals(fourth),
    }


def _search() -> dict[str, Any]:
    # What is searched, and between which loads; limits are those of the planned load to begin with.
    begin = planned_values(address.current())
    first, second, third, fourth = st.columns(4, vertical_alignment="bottom")
    over = first.selectbox("Search over", OVER, key="evaluate_search_over", **URL)
    values: dict[str, Any] = {
        "search_over": over,
        "search_from": second.number_input("From", 0.01, 100_000.0, 1.0, key="evaluate_search_from", **URL),
        "search_to": third.number_input(
            LABELS["sweep_to"],
            0.01,
            100_000.0,
            value=None,
            key="evaluate_search_to",
            placeholder="256 times",
            **URL,
            help="The highest load tried.",
        ),
        "search_share": fourth.selectbox(
            "Met by (% of requests)",
            SHARES,
            SHARES.index(begin["evaluate_search_share"]),
            key="evaluate_search_share",
            help="A failed request meets no limit.",
            **URL,
        ),
    }
    # The limits that the load must meet.
    for column, (name, label) in zip(st.columns(3, vertical_alignment="bottom"), LIMITS.items(), strict=True):
        values[f"search_{name}"] = column.number_input(
            f"{label}, at most (ms)",
            0.1,
            600_000.0,
            value=begin.get(f"evaluate_search_{name}"),
            key=f"evaluate_search_{name}",
            placeholder="no limit",
            **URL,
        )
    return values


def as_options(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `choose` as fields of the options. Raises InvalidOptions."""
    kind = fields["way"]
    if kind == SEARCH:
        return _as_search(fields)
    if kind == STREAMS:
        return {"concurrency": parse_levels(fields["concurrency"])}
    if kind == TRACE:
        return {"trace": True, "seconds": None}
    process = ARRIVALS[fields["arrivals"]]
    if kind == RATE:
        return {"rate": parse_rates(fields["rate"]), "process": process}
    ends = (fields["ramp_from"], fields["ramp_to"])
    return {"ramp": ends, "seconds": fields["ramp_seconds"], "requests": None, "process": process}


def _as_search(fields: dict[str, Any]) -> dict[str, Any]:
    share = fields["search_share"]
    limits = {name: fields[f"search_{name}"] for name in LIMITS}
    sweep = tuple(f"{name}_p{share}<={_decimal(limit)}ms" for name, limit in limits.items() if limit is not None)
    if not sweep:
        raise InvalidOptions("A search needs at least one limit, such as 500 ms to the first token.")
    first = fields["search_from"]
    if fields["search_over"] == OVER[1]:
        return {"sweep": sweep, "sweep_to": fields["search_to"], "rate": (first,)}
    if first != int(first):
        raise InvalidOptions(f"Streams are whole numbers: search from {int(first) + 1} instead of {first:g}.")
    return {"sweep": sweep, "sweep_to": fields["search_to"], "concurrency": (int(first),)}


def _decimal(limit: float) -> str:
    """Return a number without an exponent, which objectives do not accept."""
    return f"{limit:.3f}".rstrip("0").rstrip(".")


def parse_levels(words: str) -> tuple[int, ...]:
    """Return `1, 4, 16` as numbers. Raises InvalidOptions."""
    try:
        return tuple(int(part) for part in words.replace(" ", ",").split(",") if part)
    except ValueError:
        shown = shorten(words, 60)
        raise InvalidOptions(f"is wrong: `{shown}` is not a list such as 1, 4, 16.", field="concurrency") from None


def parse_rates(words: str) -> tuple[float, ...]:
    """Return `2, 8` as numbers. Raises InvalidOptions."""
    try:
        rates = tuple(float(part) for part in words.replace(" ", ",").split(",") if part)
    except ValueError:
        rates = ()
    if not rates:
        raise InvalidOptions(f"is wrong: `{shorten(words, 60)}` is not a list such as 2, 8.", field="rate")
    return rates
