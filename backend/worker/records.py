"""Every request of an evaluation as one Parquet file: variant, concurrency, block, and the record's own fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from backend.domain.load import RequestRecord
from backend.evaluate.loads import Load


def write_records(
    path: Path, names: Sequence[str], measured: Iterable[tuple[int, Load, Sequence[Sequence[RequestRecord]]]]
) -> None:
    """One row a request, warm-up included and marked; `measured` is of (variant, load, a list of records a run).

    `concurrency` is of a closed loop, `rate` (requests/s) of an open one; the other is empty.
    """
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    for variant, load, blocks in measured:
        closed = load.mode == "closed"
        asked = {"concurrency": int(load.value) if closed else None, "rate": None if closed else load.value}
        for block, requests in enumerate(blocks):
            head = {"variant": names[variant], **asked, "block": block}
            rows += [{**head, **record.model_dump(mode="json")} for record in requests]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression="zstd")
