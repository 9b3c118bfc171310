"""Filters and order of the catalog, as widgets whose values are in the address."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.field_labels import LABELS
from app.load_bar import address
from app.navigation import NARROWS
from backend.domain.rules.catalog_filter import LISTED, PUBLISHED, CatalogFilter, CatalogOrder
from backend.service import Workspace
from backend.service.models import catalog, technique_checks

HERE = "this machine"
ORIGINS = {"starter": "comes with Whetstone", "imported": "imported", "folder": "folder", "published": "published"}
CELLS = {
    "quantization": "Published: quantization",
    "speculative_decoding": "Published: speculative decoding",
    "speculative_decoding_with_provided_draft": "Published: provided draft",
}
"""Titles of the published columns, in a filter and over the table."""
ORDERS: dict[str, tuple[CatalogOrder, bool]] = {
    "My models first": ("catalog", False),
    "Name": ("name", False),
    "Family": ("family", False),
    "Fewest parameters": ("parameters", False),
    "Most parameters": ("parameters", True),
    "Longest context": ("context", True),
    "Smallest KV cache": ("kv", False),
    "Licence": ("licence", False),
}
BILLION = 1e9
ANY: dict[str, Any] = {"placeholder": "Any", **NARROWS}


def choose(opened: Workspace) -> CatalogFilter:
    """Draw the main filters above the table, the others behind a button."""
    # Techniques as checked here, then as the page lists them.
    titles = {
        **{title: kind for kind, title in technique_checks.kind_titles().items()},
        **{CELLS[name]: name for name in PUBLISHED},
    }
    # The three filters that most people need.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = st.text_input(
            "Search",
            key="catalog_words",
            type="search",
            max_chars=80,
            width=190,
            **NARROWS,
            help="Every word must occur in the name, family, provider, hub id or folder.",
        )
        selected = st.multiselect(
            "Supports technique",
            list(titles),
            key="catalog_technique",
            width=225,
            **ANY,
            help="As published by the documentation page, or as checked for the hardware chosen beside it.",
        )
        target = st.selectbox(
            "Runs on",
            [HERE, *catalog.instances(opened)],
            index=None,
            key="catalog_instance",
            width=215,
            **{**ANY, "placeholder": _place_of_load() or ANY["placeholder"]},
            help=(
                "An instance with our engines, or `sagemaker:` with the rules of the managed toolkit. Techniques"
                " are checked there; without a choice, where your load runs, else on this machine."
            ),
        )
    # Join them with the folded ones.
    return _more_filters(opened).model_copy(
        update={
            "words": words or "",
            "techniques": tuple(titles[title] for title in selected),
            "target": "local" if target == HERE else target or address.current().target,
        }
    )


def _place_of_load() -> str | None:
    """Return where the planned load runs, as the filter shows it if nothing else is chosen; None if it is open."""
    target = address.current().target
    return HERE if target == "local" else target


def choose_order(chosen: CatalogFilter) -> CatalogFilter:
    """Draw the order. Return the filter with it."""
    title = st.selectbox("Order", list(ORDERS), key="catalog_sort", width=180, label_visibility="collapsed", **NARROWS)
    sort, descending = ORDERS[title]
    return chosen.model_copy(update={"sort": sort, "descending": descending})


def _more_filters(opened: Workspace) -> CatalogFilter:
    """Draw the other filters folded, so that they can be reached on a phone."""
    # Draw the fields in a folded part.
    with st.expander("More filters", icon=":material/tune:", key="catalog_more", bind="query-params"):
        names = {title: name for name, title in ORIGINS.items() if name in LISTED}
        origins = st.multiselect("Origin", list(names), key="catalog_origin", **ANY)
        families = st.multiselect("Family", catalog.families(opened), key="catalog_family", **ANY)
        licences = st.multiselect("Licence", catalog.licences(opened), key="catalog_licence", **ANY)
        least, most = _bounds("parameters", 0.1)
        shortest, longest = _bounds("context", 1.0)
    # An empty field is no limit.
    return CatalogFilter(
        origins=tuple(names[title] for title in origins),
        families=tuple(families),
        licences=tuple(licences),
        min_parameters=_whole(least, BILLION),
        max_parameters=_whole(most, BILLION),
        min_context=_whole(shortest, 1.0),
        max_context=_whole(longest, 1.0),
    )


def _bounds(name: str, step: float) -> tuple[float | None, float | None]:
    """Draw least and most, inclusive; None if empty."""
    with st.container(horizontal=True):
        low, high = (
            st.number_input(
                LABELS[f"{end}_{name}"],
                min_value=0.0,
                max_value=1e9,
                value=None,
                step=step,
                key=f"catalog_{end}_{name}",
                format="%g",
                **ANY,
            )
            for end in ("min", "max")
        )
    return low, high


def _whole(value: float | None, one: float) -> int | None:
    return None if value is None else round(value * one)
