"""Every request of a stored evaluation: its times, its answer, and beside it the baseline's answer to the same prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from backend.domain import rotation
from backend.domain.agreement import exact, token_f1
from backend.domain.errors import NotFound, WhetstoneError
from backend.domain.load import RequestRecord
from backend.service import workloads
from backend.service.evaluations import EvaluationView

HEAD = ("variant", "concurrency", "block")
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
)


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


def times(view: EvaluationView, concurrency: int, block: int | None = None) -> list[tuple[str, RequestRecord]]:
    """(variant, record) of one level, warm-up too, without chunks and texts; of one block or all. Raises NotFound."""
    rows = _read(view, [*HEAD, *TIMES], concurrency, block=block)
    return [(str(row["variant"]), RequestRecord.model_validate({name: row[name] for name in TIMES})) for row in rows]


def pairs(view: EvaluationView, variant: str, concurrency: int) -> list[Pair]:
    """Measured requests that both answered, those whose answers differ most first. Raises NotFound."""
    baseline = view.document.variants[0].name
    columns = [*HEAD, "index", "prompt", "warm", "status", "text", "sent", "end"]
    rows = [row for row in _read(view, columns, concurrency) if not row["warm"] and row["status"] == "ok"]
    own = {(row["block"], row["index"]): row for row in rows if row["variant"] == variant}
    against = {(row["block"], row["index"]): row for row in rows if row["variant"] == baseline}
    texts = _prompts(view)
    found = [_pair(view, texts, against[key], own[key]) for key in own if key in against]
    return sorted(found, key=lambda pair: (-pair.worse, pair.block, pair.number))


def _pair(view: EvaluationView, texts: list[str], baseline: dict[str, Any], variant: dict[str, Any]) -> Pair:
    levels, block = view.document.options.concurrency, variant["block"]
    place = variant["prompt"]
    if texts:
        place = rotation.line(levels, block, variant["concurrency"], variant["prompt"], len(texts))
    return Pair(
        block=block, number=variant["index"], prompt=place, prompt_text=texts[place] if texts else None,
        baseline=baseline["text"], variant=variant["text"], worse=1 - token_f1(baseline["text"], variant["text"]),
        baseline_s=baseline["end"] - baseline["sent"], variant_s=variant["end"] - variant["sent"],
        same=exact(baseline["text"], variant["text"]),
    )  # fmt: skip


def _prompts(view: EvaluationView) -> list[str]:
    """The prompts in their order; none where the workload is gone or was changed since, and of loads by the clock or
    searched levels, whose requests cannot be told apart by their concurrency."""
    options = view.document.options
    if options.rate or options.ramp or options.trace or options.sweep:
        return []
    try:
        found = workloads.read(view.document.options.workload)
    except WhetstoneError:
        return []
    if found.sha256 != view.document.workload.get("sha256"):
        return []
    return [prompt.prompt for prompt in found.prompts]


def _read(view: EvaluationView, columns: list[str], concurrency: int, block: int | None = None) -> list[dict[str, Any]]:
    import pyarrow.parquet

    file = Path(view.path) / "records.parquet"
    if not file.is_file():
        raise NotFound(f"The requests of {view.id} are no longer at {file}: its figures are still here.")
    chosen = [("concurrency", "==", concurrency), *([("block", "==", block)] if block is not None else [])]
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file, columns=columns, filters=chosen).to_pylist()
    return rows
