"""Draw the kinds of load, when to use each, and their fields. Choices are in the URL.

`as_options` turns the fields into options and draws nothing.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.field_labels import LABELS
from app.formatting import shorten
from backend.domain.errors import InvalidOptions

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
SHARES = (90, 95, 99)
LIMITS = {"ttft": "Time to first token", "tpot": "Inter-token latency", "latency": "Whole answer"}


def choose() -> dict[str, Any]:
    """Draw the kind of load and its fields. Return what was typed, not yet checked."""
    chosen = st.radio("Load", list(KINDS), horizontal=True, key="evaluate_load", **URL)
    kind = chosen or STREAMS
    st.caption(KINDS[kind])
    draw = {STREAMS: _streams, RATE: _rate, RAMP: _ramp, SEARCH: _search, TRACE: dict}
    return {"way": kind, **draw[kind]()}


def _streams() -> dict[str, Any]:
    return {
        "concurrency": st.text_input(
            LABELS["concurrency"], "1, 4", key="evaluate_concurrency", help="Levels, such as 1, 4, 16.", **URL
        )
    }


def _rate() -> dict[str, Any]:
    left, right = st.columns(2)
    return {
        "rate": left.text_input(LABELS["rate"], "2, 8", key="evaluate_rate", help="Levels, such as 2, 8.", **URL),
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
    # What is searched, and between which loads.
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
            1,
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
            value=None,
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
