"""The cost of serving as a what-if on stored measurements: price per hour, latency limits, an API, a month."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import streamlit as st

from app import charts
from app.formatting import plain
from app.load_bar import address, field_values
from app.navigation import page_key
from app.portfolio import fleet_table
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure, finite
from backend.domain.limits import chart_selection
from backend.domain.limits.slo import Slo
from backend.domain.what_if.costs import ApiPrice, WhatIf, repriced
from backend.present.charts import evaluation as drawn
from backend.present.words import costs
from backend.present.words.costs import Within
from backend.service import Workspace
from backend.service.machines import prices

AS_GIVEN = "the price given here"
HIGHEST = 1e12
"""The highest typed number, since an address may say `inf`."""
URL: dict[str, Any] = {"bind": "query-params"}
UNSET: dict[str, Any] = {"min_value": 0.0, "max_value": HIGHEST, "value": None, **URL}


def show_prices(
    opened: Workspace, document: Evaluation, names: Collection[str], *, in_sight: bool = True
) -> tuple[WhatIf, Evaluation]:
    """Draw the fields, the price curves of the variants called `names`, and a row per variant.

    Return the what-if and the document at that price. If the tab is not in sight only the fields are drawn.
    """
    # 1. The fields.
    st.caption(
        "A what-if on these measurements: nothing is run again. The instance only sets the price; the speed is "
        "that of the measured machine. Every price on this page and in the report changes with it."
    )
    what_if = choose(opened, document)
    hour = costs.hour_words(document, what_if)
    st.caption(plain(hour))
    priced = repriced(document, what_if)
    if not in_sight:
        return what_if, priced
    # 2. Charts and the table.
    draw_price(chart_selection.select_variants(priced, names))
    best = costs.within_limits(priced, what_if)
    st.dataframe(
        rows(priced, what_if, best), hide_index=True, placeholder="–", alt="Cost of each variant within the limits"
    )
    st.caption(plain(" ".join(sentence for sentence in costs.basis(document, what_if, best) if sentence != hour)))
    fleet_table.show(document, what_if)
    return what_if, priced


def draw_price(document: Evaluation) -> None:
    """Draw one price against concurrency, with its definition."""
    metric = st.selectbox(
        "Price",
        list(drawn.PRICES),
        1,
        format_func=drawn.PRICES.__getitem__,
        key=page_key("price_shown"),
        bind="query-params",
    )
    charts.show(drawn.price(document, metric, charts.theme()), "evaluation-price")
    st.caption(costs.price_words(document, metric))


def choose(opened: Workspace, document: Evaluation) -> WhatIf:
    """Draw the fields. Return what they say; a field left as stored is None."""
    # 1. Price, discount and token ratio.
    stored = document.options
    first, second, third, fourth = st.columns(4, vertical_alignment="bottom")
    hour, source = _hour(opened, first, second, stored.price_per_hour)
    percent = third.number_input("Discount (%)", 0.0, 99.0, stored.discount * 100, key=page_key("cost_discount"), **URL)
    ratio = fourth.number_input(
        "Input:output ratio",
        0.01,
        1000.0,
        stored.input_output_ratio,
        key=page_key("cost_ratio"),
        help="For the blended prices.",
        **URL,
    )
    first, second, third, fourth, fifth = st.columns(5, vertical_alignment="bottom")
    # 2. Limits, API and traffic.
    load = address.current()
    percentile = load.percentile
    ttft = _limit(first, f"TTFT {percentile}, at most (ms)", "cost_ttft", load.max_ttft_ms)
    tpot = _limit(second, f"TPOT {percentile}, at most (ms)", "cost_tpot", load.max_tpot_ms)
    api = _api(third)
    requests = fourth.number_input(
        "Requests per month", key=page_key("cost_requests"), step=1000.0, placeholder="none", **UNSET
    )
    peak = fifth.number_input(
        "Peak over mean load",
        1.0,
        100.0,
        2.0,
        key=page_key("cost_peak"),
        help="The busiest moment decides how many machines are needed.",
        **URL,
    )
    return WhatIf(
        limits=Slo(ttft_ms=finite(ttft), tpot_ms=finite(tpot), percentile=percentile),
        price_source=source,
        per_hour=None if hour == stored.price_per_hour else hour,
        discount=None if percent == stored.discount * 100 or finite(percent) is None else percent / 100,
        input_output_ratio=None if ratio == stored.input_output_ratio else finite(ratio),
        api=api,
        requests_a_month=finite(requests) or None,
        peak=finite(peak) or 2.0,
    )


def _limit(place: Any, label: str, name: str, planned: float | None) -> float | None:
    """Draw a latency limit that begins with the planned load's and follows it. Return it, None without one."""
    key = page_key(name)
    field_values.follow_load(key, planned)
    help_ = "Limit and percentile begin with those of Your load."
    typed: float | None = place.number_input(
        label, 0.0, HIGHEST, planned, key=key, placeholder="no limit", help=help_, **URL
    )
    return typed


def _api(place: Any) -> ApiPrice | None:
    with place.popover("Hosted API", icon=":material/cloud:", width="stretch"):
        st.caption("Price of an API, USD per million tokens.")
        inside = finite(
            st.number_input("Input tokens", key=page_key("cost_api_in"), placeholder="none", format="%.3f", **UNSET)
        )
        outside = finite(
            st.number_input("Output tokens", key=page_key("cost_api_out"), placeholder="none", format="%.3f", **UNSET)
        )
    known = inside is not None or outside is not None
    return ApiPrice(per_million_input=inside or 0.0, per_million_output=outside or 0.0) if known else None


def _hour(opened: Workspace, left: Any, right: Any, stored: float | None) -> tuple[float | None, str | None]:
    """Return the price per hour and its origin: a listed instance or a typed price. An empty field is as stored."""
    # A listed instance has its price.
    listed = {row.instance: row for row in prices.listing(opened) if row.usd_per_hour is not None}
    chosen = left.selectbox("Price of", [AS_GIVEN, *listed], key=page_key("cost_instance"), bind="query-params")
    if chosen in listed:
        row = listed[chosen]
        right.text_input(
            "Price per hour (USD)", f"{row.usd_per_hour:.4f}", disabled=True, key=page_key(f"cost_hour_of_{chosen}")
        )
        return row.usd_per_hour, f"{row.instance} in {row.region}, on demand, as of {row.as_of}; {row.source_text}"
    # Otherwise the price is typed; as long as nobody types it is the stored one.
    typed = right.number_input(
        "Price per hour (USD)",
        0.0,
        HIGHEST,
        stored,
        format="%.4f",
        key=page_key("cost_hour"),
        bind="query-params",
        placeholder="none" if stored is None else f"{stored:g}, as given",
    )
    return finite(typed), None


def rows(document: Evaluation, what_if: WhatIf, best: Within | None = None) -> list[dict[str, str | None]]:
    """Return a row per variant as text; unknown cells say so. `best` is as in `costs.rows` of the words."""
    return [
        {name: cell if isinstance(cell, str) else figure(cell) for name, cell in row.items()}
        for row in costs.rows(document, what_if, best)
    ]
