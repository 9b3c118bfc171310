"""Requests of a stored evaluation: times, answers, and the baseline's answer to the same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.answer_agreement import is_exact_match, token_f1
from backend.domain.load import order
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.workload import workload
from backend.service.evaluations import latencies
from backend.service.evaluations.evaluations import EvaluationView

HEAD = ("variant", "block")
TIMES = (
    "index",
    "stream",
    "prompt",
    "warm",
    "intended",
    "sent",
    "first_content",
    "last_content",
    "end",
    "status",
    "output_tokens",
    "clock",
    "session",
    "turn",
)


class RequestPair(NamedTuple):
    """One prompt asked of two variants. `worse` is 0 for the same words, 1 for none shared."""

    block: int
    number: int
    """The variant's own request, from 0, over its run."""
    prompt: int
    """The workload's line, from 0."""
    turn: int | None
    """Turn of a conversation, from 0. From the second turn on, each variant continues from its own answers."""
    prompt_text: str | None
    """The user's words of this turn; None where the workload is no longer as it was measured."""
    baseline: str
    variant: str
    worse: float
    baseline_s: float
    """Client latency: from when it was sent, in an open loop from when it was due (`RequestRecord.start`)."""
    variant_s: float
    same: bool


def loads(view: EvaluationView) -> list[Load]:
    """Every load that was measured, rising. Raises NotFound."""
    latencies.records_file(view)
    return view.document.loads


def read_run(view: EvaluationView, load: Load, variant: str, block: int) -> list[RequestRecord]:
    """The records of one run, warm-up too, without chunks and texts. Raises NotFound."""
    rows = _read(view, [*HEAD, *TIMES], load, [("variant", "==", variant), ("block", "==", block)])
    return [_record(row) for row in rows]


def read_pairs(view: EvaluationView, variant: str, load: Load) -> list[RequestPair]:
    """Measured requests that both answered, those whose answers differ most first. Raises NotFound."""
    baseline = view.document.variants[0].name
    row_filter = [("variant", "in", (baseline, variant))]
    runs: dict[tuple[str, int], list[RequestRecord]] = {}
    for row in _read(view, [*HEAD, *TIMES, "text"], load, row_filter):
        runs.setdefault((row["variant"], row["block"]), []).append(_record(row))
    prompts = () if view.document.options.trace else _prompts(view)
    request_pairs = [
        _pair(prompts, block, first, second)
        for block in sorted({block for _, block in runs})
        for first, second in order.request_pairs(runs.get((baseline, block), ()), runs.get((variant, block), ()))
    ]
    return sorted(request_pairs, key=lambda pair: (-pair.worse, pair.block, pair.number))


def _record(row: dict[str, Any]) -> RequestRecord:
    return RequestRecord.model_validate({name: row[name] for name in (*TIMES, "text") if name in row})


def _pair(
    prompts: Sequence[workload.Prompt], block: int, baseline: RequestRecord, variant: RequestRecord
) -> RequestPair:
    """Lines of a trace are sent in the order of their times: its `prompts` are not given."""
    prompt = prompts[variant.prompt].turn(variant.turn) if prompts else None
    return RequestPair(
        block=block,
        number=variant.index,
        prompt=variant.prompt,
        turn=variant.turn,
        prompt_text=prompt,
        baseline=baseline.text,
        variant=variant.text,
        worse=1 - token_f1(baseline.text, variant.text),
        baseline_s=_latency_s(baseline),
        variant_s=_latency_s(variant),
        same=is_exact_match(baseline.text, variant.text),
    )


def _latency_s(record: RequestRecord) -> float:
    """Return the latency in seconds, from sending; from the intended time if the start was not recorded."""
    return record.end - (record.intended if record.start is None else record.start)


def _prompts(view: EvaluationView) -> Sequence[workload.Prompt]:
    """Return the prompts in order; none if the workload is missing or has changed."""
    file = Path(view.document.options.workload)
    try:
        workload_file = workload.parse_workload(file.stem, file.read_bytes())
    except (WhetstoneError, OSError):
        return []
    if workload_file.sha256 != view.document.workload.sha256:
        return []
    return workload_file.prompts


RowFilter = tuple[str, str, Any]
"""(column, comparison, value) as Parquet filters have it."""


def _read(
    view: EvaluationView, columns: Sequence[str], load: Load, also: Sequence[RowFilter]
) -> Sequence[dict[str, Any]]:
    return _rows(*latencies.records_file(view), tuple(columns), (("load", "==", load.key), *also))


@lru_cache(maxsize=16)
def _rows(
    file: str, _changed: int, _size: int, columns: tuple[str, ...], chosen: tuple[RowFilter, ...]
) -> tuple[dict[str, Any], ...]:
    """Read rows of a file; cached, so callers must not change a row."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file, columns=list(columns), filters=list(chosen))
    return tuple(table.to_pylist())
