"""Every request of a stored evaluation: its times, its answer, and beside it the baseline's answer to the same prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from backend.domain import rotation, workload
from backend.domain.agreement import exact, token_f1
from backend.domain.errors import WhetstoneError
from backend.domain.load import RequestRecord
from backend.domain.wording import streams
from backend.service import latencies
from backend.service.evaluations import EvaluationView

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
    """The request's own, from 0, over its run."""
    prompt: int
    """The workload's line, from 0."""
    prompt_text: str | None
    """None where the workload is no longer as it was measured."""
    baseline: str
    variant: str
    worse: float
    baseline_s: float
    """Client latency."""
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
    return [RequestRecord.model_validate({name: row[name] for name in TIMES if name in row}) for row in rows]


def pairs(view: EvaluationView, variant: str, asked: Asked) -> list[Pair]:
    """Measured requests that both answered, those whose answers differ most first. Raises NotFound."""
    baseline = view.document.variants[0].name
    columns = [*HEAD, "index", "prompt", "warm", "status", "text", "sent", "end"]
    of = [("variant", "in", [baseline, variant])]
    rows = [row for row in _read(view, columns, asked, of) if not row["warm"] and row["status"] == "ok"]
    own = {(row["block"], row["index"]): row for row in rows if row["variant"] == variant}
    against = {(row["block"], row["index"]): row for row in rows if row["variant"] == baseline}
    lines = _Lines(view, asked)
    found = [_pair(lines, against[key], own[key]) for key in own if key in against]
    return sorted(found, key=lambda pair: (-pair.worse, pair.block, pair.number))


def _pair(lines: _Lines, baseline: dict[str, Any], variant: dict[str, Any]) -> Pair:
    place, prompt = lines.of(variant["block"], variant["prompt"])
    return Pair(
        block=variant["block"], number=variant["index"], prompt=place, prompt_text=prompt,
        baseline=baseline["text"], variant=variant["text"], worse=1 - token_f1(baseline["text"], variant["text"]),
        baseline_s=baseline["end"] - baseline["sent"], variant_s=variant["end"] - variant["sent"],
        same=exact(baseline["text"], variant["text"]),
    )  # fmt: skip


class _Lines:
    """Which line of the workload a request was, and its text where the workload still is what was measured."""

    def __init__(self, view: EvaluationView, asked: Asked) -> None:
        options = view.document.options
        levels: list[Any] = [*options.rate] if options.rate else [*options.concurrency]
        value = asked.rate if options.rate else asked.concurrency
        known = not (options.sweep or options.trace or options.ramp) and value in levels
        self._levels, self._number = len(levels), levels.index(value) if known else None
        self._texts = _prompts(view) if known else []

    def of(self, block: int, prompt: int) -> tuple[int, str | None]:
        if self._number is None or not self._texts:
            return prompt, None
        place = rotation.line(self._levels, block, self._number, prompt, len(self._texts))
        return place, self._texts[place]


def _prompts(view: EvaluationView) -> list[str]:
    """In their order; none where the workload is gone or was changed since."""
    file = Path(view.document.options.workload)
    try:
        found = workload.parse(file.stem, file.read_bytes())
    except (WhetstoneError, OSError):
        return []
    if found.sha256 != view.document.workload.get("sha256"):
        return []
    return [prompt.prompt for prompt in found.prompts]


def _read(view: EvaluationView, columns: list[str], asked: Asked, also: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    name, value = ("concurrency", asked.concurrency) if asked.rate is None else ("rate", asked.rate)
    chosen = [(name, "==", value), *also]
    rows: list[dict[str, Any]] = _table(view, columns, chosen).to_pylist()
    return rows


def _table(view: EvaluationView, columns: list[str], chosen: list[tuple[str, str, Any]]) -> Any:
    import pyarrow.parquet

    file = latencies.file_of(view)
    known = set(pyarrow.parquet.read_schema(file).names)  # evaluations of earlier versions have no rate
    return pyarrow.parquet.read_table(file, columns=[name for name in columns if name in known], filters=chosen or None)
