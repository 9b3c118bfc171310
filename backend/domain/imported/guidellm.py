"""Reads what `guidellm run --output kind=json` writes: report form 2, of GuideLLM 0.8. Pure.

Field meanings as in guidellm 0.8.1: `schemas/base/request_stats.py` (a request), `benchmark/schemas/metrics.py`
(summaries). Distributions are those of successful requests.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from backend.domain.errors import InvalidImport
from backend.domain.imported.imported_result import (
    UNNAMED_MODEL,
    Definition,
    FileContents,
    ImportedLatency,
    ImportedLevel,
    measured_latency,
    measured_rate,
)
from backend.domain.load.load import Load
from backend.domain.validation import first_flaw

TOOL, FORM = "GuideLLM", 2
RATES = ("constant", "poisson")
CLOSED = ("concurrent", "synchronous")
DEFINITIONS = (
    Definition(
        "ttft_ms", "same", "From the request sent to the first chunk with text; an empty role chunk does not count."
    ),
    Definition(
        "tpot_ms",
        "close",
        "(Last token - first token) / (output tokens - 1): the same where the first chunk holds one token; ours takes "
        "off all "
        "of its tokens.",
    ),
    Definition("client_latency_ms", "same", "From the request sent to the end of the answer."),
    Definition(
        "output_tokens_per_s",
        "close",
        "Output tokens of successful requests over its measured window, placed by an even spread over each answer's "
        "chunks; "
        "ours divides all tokens by the time from the first request sent to the last answer ended.",
    ),
    Definition("input_tokens_per_s", "close", "Prompt tokens of successful requests over its measured window."),
)
OPEN_LOOP = (
    Definition(
        "ttft_ms",
        "differs",
        "Under a rate it counts from when the request was sent; ours counts from when it was due, so that a queue at "
        "the client "
        "is not left out.",
    ),
    Definition("client_latency_ms", "same", "Under a rate from when the request was due (its scheduled latency)."),
)


class _Percentiles(BaseModel):
    p50: float
    p90: float
    p95: float
    p99: float


class _Summary(BaseModel):
    mean: float
    count: int
    percentiles: _Percentiles


class _ByStatus(BaseModel):
    successful: _Summary


class _Totals(BaseModel):
    successful: int
    errored: int
    incomplete: int


class _Metrics(BaseModel):
    request_totals: _Totals
    requests_per_second: _ByStatus
    request_concurrency: _ByStatus
    request_latency: _ByStatus
    request_scheduled_latency: _ByStatus | None = None
    prompt_token_count: _ByStatus
    output_token_count: _ByStatus
    time_to_first_token_ms: _ByStatus
    inter_token_latency_ms: _ByStatus
    prompt_tokens_per_second: _ByStatus
    output_tokens_per_second: _ByStatus


class _Strategy(BaseModel):
    type_: str
    streams: int | None = None
    rate: float | None = None


class _Config(BaseModel):
    strategy: _Strategy


class _Benchmark(BaseModel):
    config: _Config
    metrics: _Metrics
    start_time: float
    duration: float


def is_report(document: Any) -> bool:
    """Tell whether a document looks like a report of any form; those of GuideLLM 0.2 have no metadata and name the
    kind of each benchmark."""
    if not isinstance(document, dict) or "benchmarks" not in document:
        return False
    benchmarks = document["benchmarks"]
    first = benchmarks[0] if isinstance(benchmarks, list) and benchmarks else None
    return isinstance(document.get("metadata"), dict) or (isinstance(first, dict) and "type_" in first)


def parse_report(name: str, document: dict[str, Any]) -> FileContents:
    """The levels of one report; `name` is the file's. Raises InvalidImport."""
    # 1. The form, which must be the one that is read here.
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    version = str(metadata.get("guidellm_version") or "") or None
    form = metadata.get("version")
    if form != FORM:
        written = f"form {form}" if form else "a form before 1 (GuideLLM 0.2)"
        raise InvalidImport(
            f"{name} is a GuideLLM report of {written}; this version reads form {FORM}, of GuideLLM 0.8: measure with "
            "that."
        )
    # 2. The benchmarks, one a level.
    entries = document["benchmarks"] if isinstance(document["benchmarks"], list) else []
    benchmarks = [_benchmark(name, number, entry) for number, entry in enumerate(entries, 1)]
    if not benchmarks:
        raise InvalidImport(f"{name} holds no finished benchmark of GuideLLM: let it run to its end.")
    # 3. What the file says.
    kinds = [benchmark.config.strategy.type_ for benchmark in benchmarks]
    levels = tuple(_level(name, benchmark) for benchmark in benchmarks)
    first_start = min(benchmark.start_time for benchmark in benchmarks)
    began = datetime.fromtimestamp(first_start, UTC).isoformat(timespec="seconds")
    return FileContents(TOOL, version, _model(document), began, levels, _definitions(kinds), _notes(benchmarks))


def _benchmark(name: str, number: int, document: Any) -> _Benchmark:
    try:
        return _Benchmark.model_validate(document)
    except ValidationError as error:
        where = first_flaw(error).field or "its form"
        raise InvalidImport(
            f"Benchmark {number} of {name} is not as GuideLLM 0.8 writes it: `{where}` is wrong."
        ) from None


def _load(rate: float | None, kind: str, concurrency: float | None) -> Load:
    if kind in RATES:
        return Load("rate", rate or 0)
    return Load("burst") if kind == "throughput" else Load("closed", round(concurrency or 0))


def _level(name: str, benchmark: _Benchmark) -> ImportedLevel:
    # 1. The load, which must have a counterpart here.
    strategy, metrics = benchmark.config.strategy, benchmark.metrics
    rated = strategy.type_ in RATES
    if not rated and strategy.type_ not in (*CLOSED, "throughput"):
        raise InvalidImport(
            f"{name} has a benchmark of the kind {strategy.type_}, which has no counterpart here: leave it out of the "
            "run."
        )
    streams = 1 if strategy.type_ == "synchronous" else strategy.streams
    # 2. The latency: at a rate it counts from the moment at which the request was due.
    latency = metrics.request_latency
    if rated and metrics.request_scheduled_latency:
        latency = metrics.request_scheduled_latency
    concurrency = _mean(metrics.request_concurrency) if rated or streams is None else streams
    totals = metrics.request_totals
    return ImportedLevel(
        load=_load(strategy.rate, strategy.type_, concurrency),
        concurrency=concurrency,
        requests=totals.successful + totals.errored,
        failed=totals.errored,
        duration_s=benchmark.duration,
        ttft_ms=_spread(metrics.time_to_first_token_ms),
        tpot_ms=_spread(metrics.inter_token_latency_ms),
        client_latency_ms=_spread(latency, 1000),
        requests_per_s=_mean(metrics.requests_per_second),
        input_tokens_per_s=_mean(metrics.prompt_tokens_per_second),
        output_tokens_per_s=_mean(metrics.output_tokens_per_second),
        input_tokens=_mean(metrics.prompt_token_count),
        output_tokens=_mean(metrics.output_token_count),
    )


def _spread(by_status: _ByStatus, scale: float = 1.0) -> ImportedLatency | None:
    """None where no request gave one: the tool writes zeros then."""
    summary = by_status.successful
    if not summary.count:
        return None
    statistics = {"mean": summary.mean, **summary.percentiles.model_dump()}
    return measured_latency({name: value * scale for name, value in statistics.items()})


def _mean(by_status: _ByStatus) -> float | None:
    return measured_rate(by_status.successful.mean) if by_status.successful.count else None


def _model(document: dict[str, Any]) -> str:
    spec = document.get("config")
    for name in ("spec", "backend", "model"):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return str(spec) if spec else UNNAMED_MODEL


def _definitions(kinds: list[str]) -> tuple[Definition, ...]:
    """Return the definitions for a closed loop, for a rate, or for both where the file has both."""
    rated = [kind in RATES for kind in kinds]
    if not any(rated):
        return DEFINITIONS
    replaced = {definition.metric for definition in OPEN_LOOP} if all(rated) else set()
    return (*(definition for definition in DEFINITIONS if definition.metric not in replaced), *OPEN_LOOP)


def _notes(benchmarks: list[_Benchmark]) -> tuple[str, ...]:
    cut = sum(benchmark.metrics.request_totals.incomplete for benchmark in benchmarks)
    return (f"{cut} requests were cut off at the end of a level and are in no figure.",) if cut else ()
