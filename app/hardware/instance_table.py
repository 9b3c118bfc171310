"""Draw the instance table of the Hardware page: filters and discount in the URL, refresh, rows, CSV."""

from __future__ import annotations

import streamlit as st

from app import shell
from app.formatting import message, plain
from app.hardware import instance_rows
from app.hardware.instance_rows import COLUMNS, SORTS
from app.session import disabled_unless_allowed
from backend.domain.figures import counted
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.machines import prices
from backend.service.machines.prices import PricedInstance

MOST_DISCOUNT = 90


def show(opened: Workspace) -> None:
    # 1. Heading and filters.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader("Instances and what they cost", width="stretch")
        _refresh(opened)
    priced, known, discount = _filtered(opened)
    if not priced:
        st.info("No instance matches these filters. Remove a filter.", icon=":material/filter_alt_off:")
        return
    # 2. The table and the price changes.
    st.caption(plain(f"{len(priced)} of {known} instances. {instance_rows.prices_sentence(priced)}"))
    config = {name: st.column_config.NumberColumn(format=shape) for name, shape in COLUMNS.items()}
    st.dataframe(
        instance_rows.table_rows(priced),
        hide_index=True,
        column_config={"Instance": st.column_config.TextColumn(pinned=True), **config},
        alt="Instances with accelerators, memory, bandwidth and hourly price, with region, day and source of the price",
    )
    _changes(opened)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            "CSV",
            instance_rows.as_csv(priced, discount),
            "instances.csv",
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
            key="hardware_prices-csv",
        )
        st.caption(
            "Memory and bandwidth are nominal, for all accelerators of the instance together. Prices are USD per "
            "hour for hosting, published by AWS, not measured."
        )


def _changes(opened: Workspace) -> None:
    """Show prices that changed between refreshes, if any."""
    # Without two refreshes nothing can change.
    changes = prices.list_changes(opened)
    if not changes:
        return
    # List each change with both days.
    words = f"{len(changes)} price{'s have' if len(changes) != 1 else ' has'} changed between refreshes"
    with st.expander(words, icon=":material/history:", key="hardware_price-changes"):
        rows = [
            {
                "Instance": change.instance,
                "Region": change.region,
                "Was (USD per hour)": change.before,
                "As of": f"{change.before_as_of:%Y-%m-%d}",
                "Is (USD per hour)": change.after,
                "Since": f"{change.as_of:%Y-%m-%d}",
                "Change": f"{change.share:+.1%}",
            }
            for change in changes
        ]
        st.dataframe(rows, hide_index=True, alt="Prices that changed, with what they were and are and since when")


def _filtered(opened: Workspace) -> tuple[list[PricedInstance], int, float]:
    """Draw the filters. Return the matching rows, the number of all rows and the discount."""
    # The discount first, since it changes the prices that are sorted by.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        own = min(MOST_DISCOUNT, round(opened.settings.discount * 100))
        percent = st.slider(
            "Discount (%)",
            0,
            MOST_DISCOUNT,
            own,
            key="hardware_discount",
            bind="query-params",
            width=160,
            help="Off the on-demand price, from a savings plan or your own agreement.",
        )
        rows = prices.listing(opened, discount=percent / 100)
        # Offer only families and accelerators that occur.
        families, cards = (
            list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("family", "accelerator")
        )
        words = st.text_input(
            "Search", key="hardware_words", type="search", max_chars=80, bind="query-params", width=130
        )
        family = st.multiselect("Family", families, key="hardware_family", bind="query-params", width=160)
        accelerator = st.multiselect("Accelerator", cards, key="hardware_accelerator", bind="query-params", width=150)
        sort = st.selectbox("Sort by", list(SORTS), key="hardware_sort", bind="query-params", width=140)
    # Keep the matching rows.
    priced = instance_rows.filter_rows(rows, words=words or "", families=family, accelerators=accelerator, sort=sort)
    return priced, len(rows), percent / 100


def _refresh(opened: Workspace) -> None:
    # Without credentials, say what is missing.
    lacking = prices.missing_credentials()
    if lacking is not None:
        with st.popover("Refresh prices", icon=":material/sync:"):
            st.markdown(message(f"Today's prices come from the AWS Pricing API, which needs credentials: {lacking}."))
        return
    # Ask for a region, and on request for its prices.
    with st.popover("Refresh prices", icon=":material/sync:", key="hardware_refresh-prices"):
        st.markdown(
            "Ask the AWS Pricing API for today's on-demand prices of hosting in one region. They are stored until"
            " the next refresh."
        )
        region = st.text_input(
            "AWS region", key="hardware_region", placeholder="as the environment says, else us-east-1", max_chars=40
        )
        if st.button(
            "Ask AWS", key="hardware_ask-aws", type="primary", **disabled_unless_allowed(opened, Action.REFRESH_PRICES)
        ):
            _ask(opened, (region or "").strip() or None)


def _ask(opened: Workspace, region: str | None) -> None:
    with shell.errors_inline():
        with st.spinner("Asking the AWS Pricing API"):
            refreshed = prices.refresh(opened, region)
        skipped = f" Left out: {'; '.join(refreshed.skipped[:3])}." if refreshed.skipped else ""
        unchanged = (
            f" {len(refreshed.missing)} instances have no price there and still show the snapshot's."
            if refreshed.missing
            else ""
        )
        words = (
            f"{counted(refreshed.prices, 'price')} of {refreshed.region}, as of {refreshed.as_of}.{unchanged}{skipped}"
        )
        st.success(plain(words), icon=":material/check_circle:")
