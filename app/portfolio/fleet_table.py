"""The machines that carry the planned rate of requests, for each variant of an evaluation."""

from __future__ import annotations

import streamlit as st

from app.formatting import plain
from app.load_bar import address
from app.navigation import page_key
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure, finite
from backend.domain.what_if.costs import WhatIf
from backend.domain.what_if.fleet import HEADROOM, Fleet, size_fleets

NO_RATE = "Set requests per second under Your load to see how many machines carry them, and what they cost."
BASIS = (
    "Machines = rate / (requests/s of one machine within the limits x (1 - headroom)), rounded up. Requests/s are "
    'measured; "or more" means that higher loads were not measured.'
)


def show(document: Evaluation, what_if: WhatIf) -> None:
    """Draw the headroom and a row for each variant; a line that says how to get it if the load has no rate."""
    st.subheader("Machines for a rate of requests")
    rate = address.current().rate
    if rate is None:
        st.caption(NO_RATE)
        return
    # 1. The headroom.
    percent = st.number_input(
        "Headroom for bursts (%)",
        0.0,
        90.0,
        HEADROOM * 100,
        format="%g",
        key=page_key("fleet_headroom"),
        bind="query-params",
        width=220,
    )
    # 2. The machines.
    fleets, unfit = size_fleets(document, what_if, rate, (finite(percent) or 0.0) / 100)
    if fleets:
        rows = [row(fleet) for fleet in fleets]
        st.dataframe(rows, hide_index=True, placeholder="–", alt=f"Machines for {rate:g} requests per second")
    if unfit:
        st.caption(plain(f"Within the limits at no measured load: {', '.join(unfit)}."))
    st.caption(plain(f"For {rate:g} requests per second. {BASIS}"))


def row(fleet: Fleet) -> dict[str, str | int | None]:
    """Return the row of a variant; costs are None without an hourly price."""
    return {
        "Variant": fleet.variant,
        "Requests/s of one": f"{figure(fleet.requests_per_s)}{' or more' if fleet.at_the_end else ''}",
        "Machines": fleet.machines,
        "Without headroom": fleet.machines_without_headroom,
        "Used": f"{fleet.utilisation:.0%}",
        "USD per hour": None if fleet.per_hour is None else figure(fleet.per_hour),
        "USD per month": None if fleet.per_month is None else figure(fleet.per_month),
    }
