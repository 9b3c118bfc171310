"""Rows of the instance table: prices with region and date, filtered, sorted, as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from backend.service.machines.prices import PricedInstance

Row = dict[str, Any]
SORTS: dict[str, Callable[[PricedInstance], float | None]] = {
    "Family": lambda row: 0.0,
    "Price": lambda row: row.discounted_usd_per_hour,
    "Price per GiB": lambda row: row.usd_per_hour_per_gib,
    "Most memory": lambda row: -row.memory_gib,
    "Most bandwidth": lambda row: -row.memory_gb_s,
}
"""Sort keys, lowest first; rows without a price come last."""
COLUMNS = {
    "Accelerator memory": "%.0f GiB",
    "Bandwidth": "%.0f GB/s",
    "On demand": "$%.4f",
    "After discount": "$%.4f",
    "Per GiB": "$%.4f",
}
"""Numeric columns and their formats. Prices are USD per hour."""


def filter_rows(
    rows: Sequence[PricedInstance],
    *,
    words: str = "",
    families: Sequence[str] = (),
    accelerators: Sequence[str] = (),
    sort: str = "",
) -> list[PricedInstance]:
    """Return the rows that match every filter in the chosen order; an unknown order is that of the data."""
    key = SORTS.get(sort, SORTS["Family"])
    priced = [row for row in rows if _matches(row, words.casefold().split(), families, accelerators)]
    return sorted(priced, key=lambda row: (key(row) is None, key(row) or 0.0))


def _matches(row: PricedInstance, words: Sequence[str], families: Sequence[str], accelerators: Sequence[str]) -> bool:
    text = " ".join((row.instance, row.accelerator, row.region or "", row.source_text or "")).casefold()
    in_family = not families or row.family in families
    return in_family and (not accelerators or row.accelerator in accelerators) and all(word in text for word in words)


def table_rows(rows: Sequence[PricedInstance]) -> list[Row]:
    """Return a row per instance; a price without a source is empty."""
    return [
        {
            "Instance": row.instance,
            "Accelerators": f"{row.accelerators} x {row.accelerator}",
            "Accelerator memory": row.memory_gib,
            "Bandwidth": row.memory_gb_s,
            "On demand": row.usd_per_hour,
            "After discount": row.discounted_usd_per_hour,
            "Per GiB": row.usd_per_hour_per_gib,
            "Region": row.region or "",
            "Price as of": row.as_of or "",
            "Price is": price_origin(row),
            "Source": row.source_text or "",
        }
        for row in rows
    ]


def price_origin(row: PricedInstance) -> str:
    if row.usd_per_hour is None:
        return "no source found" if row.region is None else f"none in {row.region}"
    return "refreshed from AWS" if row.refreshed else "snapshot of this version"


def as_csv(rows: Sequence[PricedInstance], discount: float) -> str:
    """Return the rows as CSV, with units in the header. `discount` is 0 to 1."""
    # Units go into the header.
    units = {
        "Accelerator memory": "GiB",
        "Bandwidth": "GB/s",
        "On demand": "USD/h",
        "After discount": f"USD/h, {discount:.0%} off",
        "Per GiB": "USD/h",
    }
    # Write the same columns as on the page.
    out = io.StringIO()
    writer = csv.writer(out)
    instances = table_rows(rows)
    names = list(instances[0]) if instances else []
    writer.writerow([f"{name} ({units[name]})" if name in units else name for name in names])
    writer.writerows([line[name] for name in names] for line in instances)
    return out.getvalue()


def prices_sentence(rows: Sequence[PricedInstance]) -> str:
    """Return where the shown prices come from, in one or two sentences."""
    # Prices of today and of the snapshot are told apart.
    fresh = [row for row in rows if row.refreshed]
    snapshot = [row for row in rows if not row.refreshed and row.usd_per_hour is not None]
    sentences = []
    # A sentence for each kind, and for rows without a price.
    if fresh:
        sentences.append(f"{len(fresh)} prices of {fresh[0].region} were fetched from AWS on {fresh[0].as_of}.")
    if snapshot:
        days = sorted(row.as_of or "" for row in snapshot)
        span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        sentences.append(
            f"{len(snapshot)} prices are from the snapshot of this version, as of {span}, in the region of each row."
        )
    without = len(rows) - len(fresh) - len(snapshot)
    if without:
        sentences.append(f"For {without} no price was found.")
    return " ".join(sentences)
