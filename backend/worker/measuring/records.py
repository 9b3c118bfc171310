"""Reads and writes every request of an evaluation as one Parquet file.

A row has the variant, the key of the load, the block, the record's fields and its latencies. The requests of one load,
of all variants, are one row group, since a screen reads one load at a time. Latencies have columns of their own, so
that a reader need not go through every chunk of every answer for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from backend.domain.evaluation.metrics import LIMITABLE_METRICS, latency_ms
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord

RECORDS = "records.parquet"


class MeasuredLevel(NamedTuple):
    """One level of one variant; `runs` has one list of records per block."""

    variant: int
    load: Load
    runs: Sequence[Sequence[RequestRecord]]


def write_records(path: Path, names: Sequence[str], measured: Iterable[MeasuredLevel]) -> None:
    """Write one row per request, by rising load; warm-up requests are included and marked.

    Only one load is in memory at a time.
    """
    import pyarrow.parquet

    loads = groupby(sorted(measured, key=lambda level: level.load), key=lambda level: level.load)
    with pyarrow.parquet.ParquetWriter(path, _schema(), compression="zstd") as file:
        for _, levels in loads:
            rows: list[dict[str, Any]] = []
            for level in levels:
                rows += _rows(names, level)
            table = pyarrow.Table.from_pylist(rows, schema=_schema())
            file.write_table(table, row_group_size=max(1, len(table)))


def read_records(path: Path) -> dict[tuple[str, str, int], list[RequestRecord]]:
    """Return the requests by variant, key of the load and block, in the order sent. Raises OSError, ValueError."""
    import pyarrow.parquet

    request_records: dict[tuple[str, str, int], list[RequestRecord]] = {}
    with pyarrow.parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group).to_pylist():
                record = RequestRecord.model_validate({name: row[name] for name in RequestRecord.model_fields})
                request_records.setdefault((row["variant"], row["load"], row["block"]), []).append(record)
    return request_records


def _rows(names: Sequence[str], level: MeasuredLevel) -> Iterator[dict[str, Any]]:
    """Yield the rows of one level; a latency is None if the request has none or failed."""
    for block, requests in enumerate(level.runs):
        head = {"variant": names[level.variant], "load": level.load.key, "block": block}
        for record in requests:
            latencies = {name: latency_ms(name, record) for name in LIMITABLE_METRICS}
            yield {**head, **record.model_dump(mode="json"), **latencies}


def _schema() -> Any:
    """Return the columns, the same for every load even if some are empty there."""
    import pyarrow

    head = {"variant": str, "load": str, "block": int}
    fields = {name: _plain(field.annotation) for name, field in RequestRecord.model_fields.items()}
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    kinds[tuple] = pyarrow.list_(pyarrow.float64())
    return pyarrow.schema(
        [(name, kinds[kind]) for name, kind in {**head, **fields, **dict.fromkeys(LIMITABLE_METRICS, float)}.items()]
    )


def _plain(annotation: Any) -> type:
    """Return the plain type of a field: float for `float | None`, str for a Literal, tuple for a tuple of figures."""
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is tuple:
        return tuple
    return next((_plain(part) for part in get_args(annotation) if part is not type(None)), annotation)
