"""What serving a variant would cost, as a what-if on stored measurements: price of the hour, latency limits, an API, a month."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import streamlit as st

from app.words import plain
from backend.domain import costs
from backend.domain.cost_words import break_even_words, load_words, month_words
from backend.domain.costs import ApiPrice, Operating
from backend.domain.evaluation import Evaluation, VariantResult
from backend.domain.prices import Pricing
from backend.domain.slo import Slo
from backend.domain.wording import figure
from backend.service import Workspace, prices

AS_GIVEN = "the price given here"
NEVER = "no measured load keeps these limits"


class Asked(NamedTuple):
    """`pricing` None: no hourly price is known."""

    pricing: Pricing | None
    limits: Slo
    api: ApiPrice | None
    requests: float | None
    peak: float


def show(opened: Workspace, document: Evaluation) -> None:
    """The fields, all in the URL, and a row a variant."""
    st.caption(
        "A what-if on these measurements: nothing is run again. The instance gives its price only; the speed stays that of the "
        "machine that was measured."
    )
    asked = ask(opened, document)
    st.dataframe(rows(document.variants, asked), hide_index=True, alt="Cost of each variant within the limits")
    st.caption(f"{_read(document.variants, asked)} A month is {costs.HOURS_A_MONTH:.0f} hours; machines are whole and always on.")


def ask(opened: Workspace, document: Evaluation) -> Asked:
    """Draw the fields and answer with what they say."""
    url: dict[str, Any] = {"bind": "query-params"}
    unset: dict[str, Any] = {"min_value": 0.0, "value": None, **url}
    stored = document.options
    first, second, third, fourth = st.columns(4, vertical_alignment="bottom")
    hour = _hour(opened, first, second, stored.price_per_hour)
    discount = third.number_input("Discount (%)", 0.0, 99.0, stored.discount * 100, key="cost_discount", **url)
    requests = fourth.number_input("Requests a month", key="cost_requests", step=1000.0, placeholder="none", **unset)
    first, second, third, fourth = st.columns(4, vertical_alignment="bottom")
    ttft = first.number_input("TTFT p95, at most (ms)", key="cost_ttft", placeholder="no limit", **unset)
    tpot = second.number_input("TPOT p95, at most (ms)", key="cost_tpot", placeholder="no limit", **unset)
    api = _api(third, unset)
    peak = fourth.number_input(
        "Peak over mean load", 1.0, 100.0, 2.0, key="cost_peak", help="The busiest moment decides how many machines it takes.",
        **url,
    )  # fmt: skip
    pricing = None
    if hour is not None:
        pricing = Pricing(per_hour=hour, discount=discount / 100, input_output_ratio=stored.input_output_ratio)
    return Asked(pricing, Slo(ttft_p95_ms=ttft, tpot_p95_ms=tpot), api, requests, peak)


def _api(place: Any, unset: dict[str, Any]) -> ApiPrice | None:
    with place.popover("Hosted API", icon=":material/cloud:", width="stretch"):
        st.caption("What an API asks for a million tokens, in the currency of the hourly price.")
        asked_in = st.number_input("Input tokens", key="cost_api_in", placeholder="none", format="%.3f", **unset)
        asked_out = st.number_input("Output tokens", key="cost_api_out", placeholder="none", format="%.3f", **unset)
    known = asked_in is not None or asked_out is not None
    return ApiPrice(per_million_input=asked_in or 0.0, per_million_output=asked_out or 0.0) if known else None


def _hour(opened: Workspace, left: Any, right: Any, stored: float | None) -> float | None:
    """The price of an instance, or one that is typed in."""
    listed = {row.instance: row for row in prices.listing(opened) if row.usd_per_hour is not None}
    chosen = left.selectbox("Price of", [AS_GIVEN, *listed], key="cost_instance", bind="query-params")
    if chosen in listed:
        row = listed[chosen]
        right.text_input("Price per hour (USD)", f"{row.usd_per_hour:.4f}", disabled=True, key=f"cost_hour_of_{chosen}")
        left.caption(f"{row.region}, on demand, as of {row.as_of}; {plain(str(row.source_text))}")
        return row.usd_per_hour
    typed: float | None = right.number_input(
        "Price per hour", 0.0, value=stored, format="%.4f", key="cost_hour", placeholder="none", bind="query-params"
    )
    return typed


def rows(variants: Sequence[VariantResult], asked: Asked) -> list[dict[str, str]]:
    """One a variant, in the evaluation's order; what cannot be told says so."""
    return [_row(result, costs.within(result, asked.limits), asked) for result in variants]


def _row(result: VariantResult, at: Operating | None, asked: Asked) -> dict[str, str]:
    if at is None:
        return {"Variant": result.name, "Highest load within the limits": NEVER}
    found = {
        "Variant": result.name,
        "Highest load within the limits": load_words(at),
        "Output tokens/s": figure(at.output_tokens_per_s),
        "Requests/s": figure(at.requests_per_s),
    }
    if asked.pricing is None:
        return {**found, "Price, million output tokens": "no price given"}
    found["Price, million output tokens"] = figure(costs.output_price(asked.pricing, at))
    if asked.api is not None:
        found["Cheaper than the API from"] = break_even_words(asked.pricing, at, asked.api)
    if asked.requests:
        month = costs.monthly(asked.pricing, at, asked.requests, asked.peak)
        found["A month"] = month_words(month) if month else "nothing was answered"
    return found


def _read(variants: Sequence[VariantResult], asked: Asked) -> str:
    found = [costs.within(result, asked.limits) for result in variants]
    if any(at is not None and at.interpolated for at in found):
        return "Between measured levels a monotone curve is read; beyond them nothing."
    return "Only levels that were measured are read."
