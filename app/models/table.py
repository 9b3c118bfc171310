"""The catalog as a table: facts, what is published in a frame, what was checked with a sign. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.models.filters import CELLS, ORIGINS
from app.models.rows import REFUSED, WORKS
from app.words import count, size
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.service.models.catalog import Entry, Line

LEGEND = (
    "A framed Yes or No is what the documentation page publishes of a model; blank means that it leaves the cell blank or lists "
    "no such model. {check} is our own check of the architecture{where}. The two are never derived from each other."
)
SHORT = {
    "quantization": "Page: quantize",
    "speculative_decoding": "Page: speculate",
    "speculative_decoding_with_provided_draft": "Page: draft",
}
"""Over the published columns."""
YES, NO, FITS = "yes", "", "✓ fits"


def title(entry: Entry) -> str:
    """What people call it: the page's name for a published model, else the id."""
    return entry.model.display_name if isinstance(entry.model, PublishedModel) else entry.id


def row(line: Line) -> dict[str, Any]:
    """One line of the catalog."""
    entry, model = line.entry, line.entry.model
    return {
        "Model": title(entry),
        "Parameters": count(model.parameters),
        **{CELLS[name]: [cell] if cell else [] for name, cell in entry.published.model_dump().items()},
        "Fits": FITS if line.fits else REFUSED,
        **{check.title: WORKS if check.works else REFUSED for check in line.checks},
        "Pre-optimized": YES if entry.preoptimized else NO,
        "Pre-compiled": YES if entry.precompiled else NO,
        "Licence": entry.licence or "not stated",
        "Gated": YES if isinstance(model, PublishedModel) and model.gated else NO,
        "Draft": model.draft or "none",
        "Context": model.max_positions,
        "KV a token": size(model.kv_bytes_per_token) if model.generates else "none, it embeds",
        "Weights": size(model.weights_bytes) if isinstance(model, ModelCard) else "not here",
        "Family": entry.family,
        "Origin": origin(entry),
        "Id": entry.id,
    }


def columns() -> dict[str, Any]:
    """How the columns look; the names are those of `row`."""
    published = {
        CELLS[name]: st.column_config.ListColumn(short, help=f"{CELLS[name]}, exactly as the page has it", width=110)
        for name, short in SHORT.items()
    }
    return {"Model": st.column_config.TextColumn(pinned=True, width=190), **published}


def origin(entry: Entry) -> str:
    return ORIGINS.get(entry.origin, entry.origin) if entry.present else "folder is gone"


def why_not(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Every refused cell of these lines with its reasons."""
    return [
        {
            "Model": title(line.entry),
            "Technique": check.title,
            "Why not": " ".join(check.reasons),
            "Source": "; ".join(check.sources),
        }
        for line in lines
        for check in line.checks
        if not check.works
    ]


def legend(target: str | None) -> str:
    where = f" on {target}" if target and target != "local" else " on this machine, its memory included"
    return LEGEND.format(check=f"{WORKS} or {REFUSED}", where=where)
