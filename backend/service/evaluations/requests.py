"""Every request of a stored evaluation: its times, its answer, and beside it the baseline's answer to the same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.answers import exact, token_f1
from backend.domain.figures import streams
from backend.domain.load import pairing, rotation
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


class Asked(NamedTuple):
    """The load that requests were sent at. `rate`, requests a second, is of an open loop, 0 of a trace."""

    concurrency: int
    rate: float | None = None

    @property
    def words(self) -> str:
        if self.rate is None:
            return streams(self.concurrency)
        return f"{self.rate:g} requests/s" if self.rate else "the trace"


class Pair(NamedTuple):
    """One prompt asked of two variants. `worse` is 0 for the same words, 1 for none shared."""

    block: int
    number: int
    """The variant's own request, from 0, over its run."""
    prompt: int
    """The workload's line, from 0."""
    turn: int | None
    """Of a conversation, from 0: from the second on each variant goes on from its own earlier answers."""
    prompt_text: str | None
    """The user's words of this turn; None where the workload is no longer as it was measured."""
    baseline: str
    variant: str
    worse: float
    baseline_s: float
    """Client latency: from when it was sent, in an open loop from when it was due (`RequestRecord.start`)."""
    variant_s: float
    same: bool


def loads(view: EvaluationView) -> list[Asked]:
    """Every load that was measured, rising. Two variants at one rate are one load, whatever concurrency each came to.

    Raises NotFound.
    """
    latencies.file_of(view)
    found: dict[tuple[float | None, int], Asked] = {}
    for level in (level for result in view.document.variants for level in result.levels):
        rate = latencies.rate_of(level)
        found.setdefault((rate, level.concurrency if rate is None else 0), Asked(level.concurrency, rate))
    return sorted(found.values(), key=lambda each: (each.rate or 0.0, each.concurrency))


def times(view: EvaluationView, asked: Asked, variant: str, block: int) -> list[RequestRecord]:
    """The records of one run, warm-up too, without chunks and texts. Raises NotFound."""
    rows = _read(view, [*HEAD, *TIMES], asked, [("variant", "==", variant), ("block", "==", block)])
    return [_record(row) for row in rows]


def pairs(view: EvaluationView, variant: str, asked: Asked) -> list[Pair]:
    """Measured requests that both answered, those whose answers differ most first. Raises NotFound."""
    baseline = view.document.variants[0].name
    of = [("variant", "in", (baseline, variant))]
    runs: dict[tuple[str, int], list[RequestRecord]] = {}
    for row in _read(view, [*HEAD, *TIMES, "text"], asked, of):
        runs.setdefault((row["variant"], row["block"]), []).append(_record(row))
    lines = _Lines(view, asked)
    found = [
        _pair(lines, block, first, second)
        for block in sorted({block for _, block in runs})
        for first, second in pairing.pairs(runs.get((baseline, block), ()), runs.get((variant, block), ()))
    ]
    return sorted(found, key=lambda pair: (-pair.worse, pair.block, pair.number))


def _record(row: dict[str, Any]) -> RequestRecord:
    """Evaluations of earlier versions have no session, turn and clock."""
    return RequestRecord.model_validate({name: row[name] for name in (*TIMES, "text") if name in row})


def _pair(lines: _Lines, block: int, baseline: RequestRecord, variant: RequestRecord) -> Pair:
    place, prompt = lines.of(block, variant)
    return Pair(
        block=block, number=variant.index, prompt=place, turn=variant.turn, prompt_text=prompt,
        baseline=baseline.text, variant=variant.text, worse=1 - token_f1(baseline.text, variant.text),
        baseline_s=_took(baseline), variant_s=_took(variant), same=exact(baseline.text, variant.text),
    )  # fmt: skip


def _took(record: RequestRecord) -> float:
    """An answer began; should its stamp be missing, it was due at the least."""
    return record.end - (record.intended if record.start is None else record.start)


class _Lines:
    """Which line of the workload a request was, and its text where the workload still is what was measured."""

    def __init__(self, view: EvaluationView, asked: Asked) -> None:
        options = view.document.options
        levels: list[Any] = [*options.rate] if options.rate else [*options.concurrency]
        value = asked.rate if options.rate else asked.concurrency
        known = not (options.sweep or options.trace or options.ramp) and value in levels
        self._levels, self._number = len(levels), levels.index(value) if known else None
        self._texts = _prompts(view) if known else []

    def of(self, block: int, record: RequestRecord) -> tuple[int, str | None]:
        if self._number is None or not self._texts:
            return record.prompt, None
        place = rotation.line(self._levels, block, self._number, record.prompt, len(self._texts))
        return place, self._texts[place].turn(record.turn)


def _prompts(view: EvaluationView) -> Sequence[workload.Prompt]:
    """In their order; none where the workload is gone or was changed since."""
    file = Path(view.document.options.workload)
    try:
        found = workload.parse(file.stem, file.read_bytes())
    except (WhetstoneError, OSError):
        return []
    if found.sha256 != view.document.workload.sha256:
        return []
    return found.prompts


Condition = tuple[str, str, Any]
"""(column, comparison, value) as Parquet filters have it."""


def _read(view: EvaluationView, columns: Sequence[str], asked: Asked, also: Sequence[Condition]) -> Sequence[dict[str, Any]]:
    load: Condition = ("concurrency", "==", asked.concurrency) if asked.rate is None else ("rate", "==", asked.rate)
    file = latencies.file_of(view)
    status = file.stat()
    return _rows(str(file), status.st_mtime_ns, status.st_size, tuple(columns), (load, *also))


@lru_cache(maxsize=16)
def _rows(
    file: str, _changed: int, _size: int, columns: tuple[str, ...], chosen: tuple[Condition, ...]
) -> tuple[dict[str, Any], ...]:
    """Of a file as it is now. Nobody may change a row: a page asks for the same ones at every click."""
    import pyarrow.parquet

    known = set(pyarrow.parquet.read_schema(file).names)  # evaluations of earlier versions have no rate
    table = pyarrow.parquet.read_table(file, columns=[name for name in columns if name in known], filters=list(chosen))
    return tuple(table.to_pylist())
