"""Every request of an evaluation as one Parquet file: variant, concurrency, rate, block, and the record's own fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.load import RequestRecord


class Measured(NamedTuple):
    """One level of one variant: `runs` has a list of records a block. `rate` is None for a closed loop, 0 for a trace."""

    variant: int
    concurrency: int
    rate: float | None
    runs: Sequence[Sequence[RequestRecord]]


def write_records(path: Path, names: Sequence[str], measured: Iterable[Measured]) -> None:
    """One row a request, warm-up included and marked."""
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    for level in measured:
        for block, requests in enumerate(level.runs):
            head = {"variant": names[level.variant], "concurrency": level.concurrency, "rate": level.rate, "block": block}
            rows += [{**head, **record.model_dump(mode="json")} for record in requests]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression="zstd")
