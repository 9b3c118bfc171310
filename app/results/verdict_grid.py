"""The grid of verdicts: an overview before the sentences."""

from __future__ import annotations

import streamlit as st

from app.formatting import plain
from backend.domain.evaluation.document import Evaluation
from backend.domain.load.load import Load
from backend.present.words.verdicts import GridCell, GridRow, grid_rows

CONCURRENCY = "**Concurrency**"
"""Heading that no variant's name can equal, since those are escaped."""
NO_BREAK = "\u00a0"
MANY = 4
"""With more levels than this they become rows, so that the grid is never wider than a screen."""
ROW, TALL = 40, 240
"""Heights in pixels: a longer grid scrolls, so that the first chart remains visible."""
SIGNS = {
    "baseline": "",
    "faster": ":green[:material/arrow_upward:] ",
    "slower": ":orange[:material/arrow_downward:] ",
    "same": ":material/equal: ",
    "noisy": ":gray[:material/graphic_eq:] ",
    "none": ":gray[:material/help:] ",
}


def show(document: Evaluation) -> None:
    """Draw throughput against the baseline at every level, with each variant's quality."""
    rows = grid_rows(document)
    if not rows:
        return
    loads = document.loads
    table = rows_by_variant(rows, loads) if len(loads) <= MANY else rows_by_load(rows, loads)
    height = TALL if len(table) > TALL // ROW else "content"
    st.table(
        table,
        border="horizontal",
        hide_index=True,
        height=height,
        alt="Verdicts: output tokens/s of each variant at each concurrency",
    )


def rows_by_variant(rows: list[GridRow], loads: list[Load]) -> list[dict[str, str]]:
    """Return a row per variant, a column per level. Quality words are beside the name, its figures last, for phones."""
    table, scored = [], any(" (" in row.quality for row in rows)
    for row in rows:
        words, _, scores = row.quality.partition(" (")
        first = {"Variant and quality": f"**{plain(row.name)}** {words}"}
        last = {"Quality in figures": scores.removesuffix(")")} if scored else {}
        table.append(first | {load.words: cell_text(row, load) for load in loads} | last)
    return table


def rows_by_load(rows: list[GridRow], loads: list[Load]) -> list[dict[str, str]]:
    """Return a row per level, a column per variant, quality first."""
    table = [{CONCURRENCY: load.words, **{plain(row.name): cell_text(row, load) for row in rows}} for load in loads]
    return [{CONCURRENCY: "**Quality**", **{plain(row.name): row.quality for row in rows}}, *table]


def cell_text(row: GridRow, load: Load) -> str:
    """Return sign, word and interval; a dash if the variant was not measured at this load."""
    cell = row.cells.get(load)
    return "–" if cell is None else f"{SIGNS[cell.kind]}{_outcome_text(cell)}{f'; {cell.but}' if cell.but else ''}"


def _outcome_text(cell: GridCell) -> str:
    """Return the outcome in bold; its interval does not wrap."""
    head = f"**{cell.words}**" if cell.kind in {"faster", "slower"} else cell.words
    return f"{head} {cell.interval.replace(' ', NO_BREAK)}".rstrip()
