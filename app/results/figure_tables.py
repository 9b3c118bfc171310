"""The figures of an evaluation as tables: the documentation page's metrics, percentiles, and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.formatting import seconds, size
from app.navigation import page_key
from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.figures import compression_ratio, figure, rounded
from backend.present.tables.evaluation import distribution_table, table
from backend.present.words import load_search


def show(document: Evaluation, key: str) -> None:
    """Draw the metrics under the page's own names; percentiles on request, since they are five rows per level."""
    show_search(document)
    _figures(table(document), f"{key}-table", "Every metric, one row per variant and concurrency")
    if st.toggle("Show all percentiles", key=page_key("percentiles"), bind="query-params"):
        alt = "Mean and percentiles of each latency, one row per variant, concurrency and latency"
        _figures(distribution_table(document), f"{key}-percentiles", alt)
    st.markdown("**Servers**")
    st.dataframe(server_rows(document), hide_index=True, alt="What each server took, one row per variant")
    st.caption(
        "Memory is the peak of the server with all its processes. Acceptance is the share of draft tokens that "
        "the model accepted, by the server's own counters; lowest and highest level."
    )


def _figures(rows: Sequence[Mapping[str, Any]], key: str, alt: str) -> None:
    st.dataframe(rounded_rows(rows), hide_index=True, key=page_key(key), placeholder="not measured", alt=alt)


def rounded_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Round fractions to three significant digits; cells remain numbers, and the files have every digit."""
    return [{name: rounded(cell) if isinstance(cell, float) else cell for name, cell in row.items()} for row in rows]


def show_search(document: Evaluation) -> None:
    """Show whether each load met the limits; nothing if loads were not searched."""
    searched = load_search.rows(document)
    if searched:
        st.dataframe(
            searched,
            hide_index=True,
            alt="Whether each load of the search met the limits, one row per variant and load",
        )
        st.caption(
            "Share within is of the requests whose latency was within each limit, in the order of the objectives."
        )


def server_rows(document: Evaluation) -> list[dict[str, str]]:
    """Return a row per variant: start time, memory, acceptance and tokens per chunk; unknown cells say so."""
    original = document.variants[0].variant.bytes_on_disk
    return [_server(result, original) for result in document.variants]


def _server(result: VariantResult, original_bytes: int | None) -> dict[str, str]:
    unknown = "not ours" if result.variant.kind == "url" else "not measured"
    return {
        "Variant": result.name,
        "Ready in": unknown if result.ready_seconds is None else seconds(result.ready_seconds),
        "Peak memory": unknown if result.peak_rss_bytes is None else size(result.peak_rss_bytes),
        "Weights on disk": size(result.variant.bytes_on_disk),
        "Compression ratio": figure(compression_ratio(original_bytes, result.variant.bytes_on_disk)),
        "Acceptance rate": _range_text(result.levels, "acceptance_rate") or result.no_acceptance,
        "Tokens per chunk": _range_text(result.levels, "tokens_per_chunk") or "not measured",
    }


def _range_text(levels: list[Level], name: str) -> str:
    """Return `2.41` or `2.31 to 2.52`; empty if no level has it."""
    values: list[Any] = [value for level in levels if (value := getattr(level, name)) is not None]
    if not values:
        return ""
    words = (f"{value:.0%}" if name == "acceptance_rate" else figure(value) for value in (min(values), max(values)))
    return " to ".join(dict.fromkeys(words))
