"""A result that another load generator wrote, as we keep it: only the figures its file holds, and how each is defined
there.

Never an `Evaluation`: it has no repeats, so nothing is tested on it, and its figures stand beside ours, not among them.
Knows nothing of files; `guidellm` and `vllm` read each tool's form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.load.load import Load

DefinitionFit = Literal["same", "close", "differs"]
"""Agreement of a tool's definition with ours: the same, the same but for a stated difference, or different."""
Figure = Annotated[float, Field(ge=0)]
NO_TEST = "One run, without repeats: nothing is tested on it, so there is no verdict."


class ImportedLatency(Frozen):
    """Order statistics in milliseconds; None where the file does not hold one."""

    mean: Figure | None = None
    p50: Figure | None = None
    p90: Figure | None = None
    p95: Figure | None = None
    p99: Figure | None = None


def measured_latency(statistics: Mapping[str, Any]) -> ImportedLatency | None:
    """Statistics of one latency, None where the tool wrote a placeholder.

    Load generators write 0 ms for a latency that no request had (one token an answer has no inter-token latency), and
    Infinity or NaN for a division by zero. Where one statistic is a placeholder the others contain it, so that all are
    None. Raises ValueError for a figure below zero or no number.
    """
    figures = {name: value for name, value in statistics.items() if value is not None}
    if not figures or any(is_placeholder(value) for value in figures.values()):
        return None
    return ImportedLatency.model_validate(figures)


def measured_rate(value: float | None) -> float | None:
    """A rate or a mean count, None where the tool wrote a placeholder."""
    return None if is_placeholder(value) else value


def is_placeholder(value: Any) -> bool:
    """Tell whether a figure is one that tools write where nothing was measured: 0, Infinity, NaN, or nothing."""
    return value is None or (isinstance(value, int | float) and (value == 0 or not math.isfinite(value)))


PLACEHOLDERS = "zeros, Infinity or NaN are in the file where nothing was measured"


def placeholder_note(names: Sequence[str]) -> tuple[str, ...]:
    """One sentence for the figures that were left out as placeholders; none where none were."""
    return (f"Left out: {', '.join(names)}; {PLACEHOLDERS}.",) if names else ()


class ImportedLevel(Frozen):
    """One load. `concurrency` is None where the tool sent by a clock and did not say how many requests were under
    way."""

    load: Load
    concurrency: Figure | None
    """Streams; under a rate the mean number of requests under way."""
    requests: int = Field(ge=0)
    failed: int = Field(ge=0)
    duration_s: Figure
    ttft_ms: ImportedLatency | None = None
    tpot_ms: ImportedLatency | None = None
    chunk_gap_ms: ImportedLatency | None = None
    client_latency_ms: ImportedLatency | None = None
    content_latency_ms: ImportedLatency | None = None
    requests_per_s: Figure | None = None
    input_tokens_per_s: Figure | None = None
    output_tokens_per_s: Figure | None = None
    input_tokens: Figure | None = None
    """Mean a request."""
    output_tokens: Figure | None = None
    acceptance_rate: Figure | None = None


class Definition(NamedTuple):
    """Definition that a tool has of `metric`, a field of ImportedLevel, compared with ours."""

    metric: str
    fit: DefinitionFit
    words: str


class ImportedResult(Frozen):
    """`id` follows from the content of the files: the same files twice are one result."""

    id: str
    name: str
    tool: str
    version: str | None
    """None where the file does not name it."""
    model: str
    measured_at: str | None
    files: tuple[str, ...]
    sha256: str
    levels: tuple[ImportedLevel, ...]
    definitions: tuple[Definition, ...]
    notes: tuple[str, ...] = ()
    """Notes that must be shown with the figures."""

    @property
    def provenance(self) -> str:
        return f"imported from {self.tool} {self.version or '(the file names no version)'}"


class FileContents(NamedTuple):
    """Contents of one file of a tool."""

    tool: str
    version: str | None
    model: str
    measured_at: str | None
    levels: tuple[ImportedLevel, ...]
    definitions: tuple[Definition, ...]
    notes: tuple[str, ...]


TITLES = {
    "ttft_ms": "Time to first token",
    "tpot_ms": "Inter-token latency",
    "chunk_gap_ms": "Chunk gap",
    "client_latency_ms": "Client latency",
    "content_latency_ms": "Content latency",
    "output_tokens_per_s": "Output tokens/s",
    "input_tokens_per_s": "Input tokens/s",
}
UNNAMED_MODEL = "a model that the file does not name"
FITS: dict[DefinitionFit, str] = {"same": "coincides", "close": "nearly", "differs": "differs"}


def definition_rows(results: Sequence[ImportedResult]) -> list[dict[str, str]]:
    """One a tool and metric: whether its definition coincides with ours, and where not, how."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for result in results:
        for definition in result.definitions:
            rows[result.tool, definition.metric, definition.words] = {
                "Tool": result.tool,
                "Metric": TITLES[definition.metric],
                "With ours": FITS[definition.fit],
                "How it is defined there": definition.words,
            }
    return list(rows.values())


def figure_rows(results: Sequence[ImportedResult]) -> list[dict[str, str | int | float | None]]:
    """One a result and level; what the file does not hold is None."""
    return [_row(result, level) for result in results for level in result.levels]


def _row(result: ImportedResult, level: ImportedLevel) -> dict[str, str | int | float | None]:
    latencies: dict[str, str | int | float | None] = {"Result": result.name, "Concurrency": str(level.load.cell)}
    for metric in ("ttft_ms", "tpot_ms", "chunk_gap_ms", "client_latency_ms", "content_latency_ms"):
        spread: ImportedLatency = getattr(level, metric) or ImportedLatency()
        latencies |= {f"{TITLES[metric]} {name} (ms)": getattr(spread, name) for name in ("p50", "p99")}
    return {
        **latencies,
        "Output tokens/s": level.output_tokens_per_s,
        "Input tokens/s": level.input_tokens_per_s,
        "Requests/s": level.requests_per_s,
        "Requests": level.requests,
        "Failed": level.failed,
        "Duration (s)": level.duration_s,
        "Provenance": result.provenance,
    }
