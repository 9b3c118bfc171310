"""The catalog as a table: facts, published cells in a frame, checked cells with a sign. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from app.formatting import cell, count, size
from app.models.catalog_filters import CELLS, ORIGINS
from app.models.model_rows import REFUSED, WORKS
from backend.domain.figures import figure
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.domain.recipe.methods import PRUNE, STRUCTURED
from backend.present import load_words
from backend.present.charts.theme import Theme
from backend.present.source_names import short_name
from backend.service.models.catalog import CatalogEntry, CatalogLine, CheapestInstance
from backend.service.models.technique_checks import TechniqueCheck
from backend.service.plans.token_prices import ModelPrice

LEGEND = (
    "A framed Yes or No is what the documentation page publishes; a blank means that the page has a blank or does"
    " not list the model. {check} is our own check of the architecture{where}. The two are never derived from "
    "each other."
)
LOWEST_HOUR = (
    "The instance with the lowest published on-demand price per hour that serves the original with our engines. "
    "Its price per token may be higher than another's."
)
PRICED_ON = "The instance with the lowest price per token, or the chosen one; without its `ml.`"
LINK: dict[Theme, str] = {"light": "#0b6e99", "dark": "#58b4e3"}
"""Colours of links on a table, with a contrast of at least 4.5 to 1."""
A_MILLION = "Estimated USD per million output tokens of the original, lowest to highest."
SHORT = {
    "quantization": "Page: quantize",
    "speculative_decoding": "Page: speculate",
    "speculative_decoding_with_provided_draft": "Page: draft",
}
"""Headings of the published columns."""
YES, NO, FITS = "yes", "", "✓ fits"
GROUPS: dict[str, frozenset[str]] = {
    "≤ 4-bit": frozenset(
        {"rtn", "awq", "gptq", "autoround", "gguf", "w4a8_fp8", "nvfp4", "mxfp4", "w4a4", "slim_llm", "bitnet", "billm"}
    ),
    "8-bit": frozenset({"w8a8", "smoothquant", "int8", "w6a6"}),
    "FP8, KV": frozenset({"fp8", "fp8_block", "mxfp8", "kv_cache"}),
    "Prune": frozenset({*PRUNE, *STRUCTURED}),
    "Speculate": frozenset({"draft", "ngram", "ngram_adaptive"}),
    "Compile": frozenset({"compile"}),
}
"""Techniques that share a column of the compact table; a test checks that none is missing."""
WIDTHS = {"FP8, KV": 60, "Prune": 55, "Speculate": 74, "Compile": 62}
COMPACT = ("Model", "Parameters", "Context", "Fits", *GROUPS, "USD per million", "Priced on")
"""Columns for which a screen of 1280 pixels has room."""


def model_title(entry: CatalogEntry) -> str:
    """Return the name on the page of a published model, else the short name."""
    return entry.model.display_name if isinstance(entry.model, PublishedModel) else short_name(entry.id)


def group_cells(line: CatalogLine) -> dict[str, str]:
    """Return how many of each group work: `✓`, `2 of 3`, `✗`; nothing where the model itself does not fit and none
    works."""
    cells = {}
    for name, kinds in GROUPS.items():
        works = [check.works for check in line.checks if check.kind in kinds]
        if works and all(works):
            cells[name] = "✓"
        else:
            none = "✗" if line.fits else ""
            cells[name] = f"{sum(works)} of {len(works)}" if any(works) else none
    return cells


def group_help(kinds: Iterable[str]) -> str:
    """Return the methods that a column counts, and how to read its cells."""
    names = sorted(kinds)
    if len(names) == 1:
        return "✓ it works there, ✗ it does not. The model's page has the reason."
    return f"Methods: {', '.join(names)}. ✓ all work there, ✗ none; else how many. The model's page has the reasons."


def unfit_sentence(lines: Sequence[CatalogLine], target: str | None) -> str | None:
    """Return how many of the models do not fit there, whose cells are empty; None if all fit."""
    unfit = sum(not line.fits for line in lines)
    if not unfit:
        return None
    where = "this machine" if target in {None, "local"} else str(target)
    which = f"{unfit} of these {len(lines)} models {'does' if unfit == 1 else 'do'} not fit"
    if unfit == len(lines):
        which = "None of these models fits" if unfit > 1 else "This model does not fit"
    rows, they = ("their rows", "they fit") if unfit > 1 else ("its row", "it fits")
    end = "they run" if unfit > 1 else "it runs"
    return (
        f"{which} on {where} as published. A mark in {rows} is a technique with which {they}. "
        f"Choose an instance under Runs on to see where {end}."
    )


def row(line: CatalogLine, cheapest: CheapestInstance | None = None, price: ModelPrice | None = None) -> dict[str, Any]:
    """Return one line. `cheapest` is the cheapest instance that fits the original; `price` is its price per token."""
    entry, model = line.entry, line.entry.model
    return {
        "Model": model_title(entry),
        "Parameters": count(model.parameters),
        **{CELLS[name]: [cell] if cell else [] for name, cell in entry.published.model_dump().items()},
        "Fits": FITS if line.fits else "",
        **group_cells(line),
        "USD per million": "–".join(dict.fromkeys(figure(end, 2) for end in price.per_million_output))
        if price
        else "–",
        "Priced on": load_words.several(price.target.removeprefix("ml."), price.instances) if price else "–",
        "Lowest hourly price": cheapest.instance if cheapest else "none",
        "USD/h": cheapest.usd_per_hour if cheapest else None,
        **{check.title: WORKS if check.works else REFUSED for check in line.checks},
        "Pre-optimized": YES if entry.preoptimized else NO,
        "Pre-compiled": YES if entry.precompiled else NO,
        "Licence": entry.licence or "not stated",
        "Gated": YES if isinstance(model, PublishedModel) and model.gated else NO,
        "Draft": model.draft or "none",
        "Context": model.max_positions,
        "KV per token": size(model.kv_bytes_per_token) if model.generates else "none, it embeds",
        "Weights": size(model.weights_bytes) if isinstance(model, ModelCard) else "not here",
        "Family": entry.family,
        "Origin": ORIGINS.get(entry.origin, entry.origin) if entry.present else "folder is gone",
        "Id": entry.id,
    }


def styled_rows(rows: Sequence[dict[str, Any]], theme: Theme) -> Any:
    """Return the rows with names that look like links, as a pandas Styler."""
    import pandas

    table = pandas.DataFrame(rows)
    return table.style.set_properties(subset=["Model"], color=LINK[theme]).format({"USD/h": "{:.2f}"}, na_rep="–")


def column_config(*, pinned: bool = False) -> dict[str, Any]:
    """Return the appearance of the columns of `row`. Pinned names are drawn pale, as no link is."""
    published = {
        CELLS[name]: st.column_config.ListColumn(short, help=f"{CELLS[name]}, exactly as the page has it", width=110)
        for name, short in SHORT.items()
    }
    return {
        "Model": st.column_config.TextColumn(pinned=pinned, width=165),
        **{
            name: st.column_config.TextColumn(width=WIDTHS.get(name, 52), help=group_help(kinds))
            for name, kinds in GROUPS.items()
        },
        "Fits": st.column_config.TextColumn(width=50),
        "Parameters": st.column_config.TextColumn("Size", width=58),
        "Context": st.column_config.NumberColumn(width=57),
        "USD per million": st.column_config.TextColumn("USD/M out", width=90, help=A_MILLION),
        "Priced on": st.column_config.TextColumn(width=102, help=PRICED_ON),
        "USD/h": st.column_config.NumberColumn(width=55, format="%.2f"),
        "Lowest hourly price": st.column_config.TextColumn(width=122, help=LOWEST_HOUR),
        **published,
    }


def table_height(rows: int) -> int:
    """Return the height of the whole table in pixels, so that it does not scroll within the page."""
    return 35 * (rows + 1) + 3


def reason_rows(lines: Sequence[CatalogLine]) -> list[dict[str, str]]:
    """Return the reasons of every refused technique of these lines; equal reasons of a model share a row."""
    return [
        {
            "Model": model_title(line.entry),
            "Techniques": ", ".join(check.title for check in alike),
            "Why not": cell(" ".join(alike[0].reasons)),
            "Source": cell("; ".join(alike[0].sources)),
        }
        for line in lines
        for alike in group_refusals(line.checks)
    ]


def group_refusals(checks: Iterable[TechniqueCheck]) -> list[list[TechniqueCheck]]:
    """Return the refused checks, grouped by equal reasons."""
    groups: dict[tuple[str, ...], list[TechniqueCheck]] = {}
    for check in checks:
        if not check.works:
            groups.setdefault(check.reasons, []).append(check)
    return list(groups.values())


def price_note(prices: Sequence[ModelPrice]) -> str:
    """Return load, place and date of the prices of a list, each once."""
    if not prices:
        return "No price per million tokens is known for these models there."
    where = "on the instance chosen above" if prices[0].chosen else "on the instance with the lowest price per token"
    load, basis = prices[0].load, load_words.rate_basis(prices[0].load)
    notes = "; ".join(sorted({price.note for price in prices if price.note}))
    return f"USD/M out: USD per million output tokens, estimated at {load.text}, {where}.{basis} Prices: {notes}."


def legend(target: str | None) -> str:
    where = f" on {target}" if target and target != "local" else " on this machine, its memory included"
    return LEGEND.format(check=f"{WORKS} or {REFUSED}", where=where)
