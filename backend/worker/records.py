"""Every request of an evaluation as one Parquet file: variant, concurrency, block, and the record's own fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.domain.load import RequestRecord


def write_records(path: Path, names: Sequence[str], records: Mapping[tuple[int, int], Sequence[Sequence[RequestRecord]]]) -> None:
    """One row a request, warm-up included and marked."""
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    for (variant, concurrency), blocks in records.items():
        for block, requests in enumerate(blocks):
            head = {"variant": names[variant], "concurrency": concurrency, "block": block}
            rows += [{**head, **record.model_dump(mode="json")} for record in requests]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression="zstd")
