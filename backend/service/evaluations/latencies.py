"""The latencies of every measured request of an evaluation, read once as long as its file stays the same.

From them: how many requests keep limits that are chosen afterwards, and how a latency is spread. Nothing is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import NotFound
from backend.domain.evaluation.metrics import LIMITABLE_METRICS
from backend.domain.limits.goodput import CountWithin, RequestLimits, VariantLoad
from backend.domain.load.load import Load
from backend.service.evaluations.evaluations import EvaluationView

GROUP = ("variant", "load")
FILES_CACHED = 4
"""Files whose latencies stay in memory: 600,000 requests take about 30 MB."""


class _LatencyTable(NamedTuple):
    """`places`: (first row, rows) of each (variant, key of a load) in the table."""

    table: Any
    places: dict[tuple[str, str], tuple[int, int]]


def records_file(view: EvaluationView) -> tuple[str, int, int]:
    """Return the file's path, modification time and size, which identify its content. Raises NotFound if it is
    missing."""
    file = Path(view.path) / "records.parquet"
    if not file.is_file():
        raise NotFound(f"The requests of {view.id} are no longer at {file}: its figures are still here.")
    status = file.stat()
    return str(file), status.st_mtime_ns, status.st_size


def count_within(view: EvaluationView, limits: RequestLimits) -> dict[VariantLoad, CountWithin]:
    """Count measured requests and those within the limits, for each variant and load. Raises NotFound."""
    import pyarrow.compute as compute

    latencies = _read(*records_file(view))
    # Mark the requests that succeeded within every limit; a latency that was not measured is not within it.
    within = latencies.table["ok"]
    for limit in limits.latency_limits:
        allowed = compute.less_equal(latencies.table[limit.metric], limit.most_ms)
        within = compute.and_(within, compute.fill_null(allowed, False))
    # Sum the marks over the rows of each variant and load.
    table = latencies.table.set_column(0, "ok", within)
    counts: dict[VariantLoad, CountWithin] = {}
    for result in view.document.variants:
        for level in result.levels:
            place = latencies.places.get((result.name, level.load.key))
            if place is not None:
                rows = _without(table.slice(*place), level.audit.late_blocks)
                counts[result.name, level.load] = CountWithin(compute.sum(rows["ok"]).as_py() or 0, rows.num_rows)
    return counts


def sorted_latencies(view: EvaluationView, variant: str, load: Load, metric: str) -> list[float]:
    """Return one latency of every successful request of a variant at a load, sorted, in milliseconds. Raises
    NotFound."""
    latencies = _read(*records_file(view))
    place = latencies.places.get((variant, load.key))
    if place is None:
        return []
    rows = _without(latencies.table.slice(*place), _late_blocks(view, variant, load))
    values: list[float] = rows[metric].drop_null().to_pylist()
    return sorted(values)


def _late_blocks(view: EvaluationView, variant: str, load: Load) -> Sequence[int]:
    """Return the blocks that are not part of the level."""
    levels = [level for result in view.document.variants if result.name == variant for level in result.levels]
    return next((level.audit.late_blocks for level in levels if level.load == load), ())


def _without(table: Any, blocks: Sequence[int]) -> Any:
    """Return the rows of the other blocks."""
    import pyarrow
    import pyarrow.compute as compute

    if not blocks:
        return table
    left_out = pyarrow.array(blocks, table.schema.field("block").type)
    return table.filter(compute.invert(compute.is_in(table["block"], value_set=left_out)))


@lru_cache(maxsize=FILES_CACHED)
def _read(file: str, _changed: int, _size: int) -> _LatencyTable:
    """Read the status and latencies of all measured requests."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet

    # Leave out the requests of the warm-up.
    columns = ["warm", "status", *GROUP, "block", *LIMITABLE_METRICS]
    table = pyarrow.parquet.read_table(file, columns=columns, read_dictionary=["variant"])
    table = table.filter(compute.invert(table["warm"])).unify_dictionaries()
    table = table.append_column("ok", compute.equal(table["status"], "ok"))
    # Sort by variant and load, so that each pair is one range of rows.
    names = table["variant"].combine_chunks()
    table = table.set_column(table.column_names.index("variant"), "variant", names.indices)
    table = table.sort_by([(name, "ascending") for name in GROUP])
    return _LatencyTable(
        table.select(["ok", "block", *LIMITABLE_METRICS]).combine_chunks(),
        _row_ranges(table, names.dictionary.to_pylist()),
    )


def _row_ranges(table: Any, names: list[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (first row, rows) of each (variant, load) in a sorted table; variants are indices into `names`."""
    ranges: dict[tuple[str, str], tuple[int, int]] = {}
    start = 0
    for row in table.group_by(list(GROUP), use_threads=False).aggregate([("ok", "count")]).to_pylist():
        ranges[names[row["variant"]], row["load"]] = (start, row["ok_count"])
        start += row["ok_count"]
    return ranges
