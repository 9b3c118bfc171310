"""Reads what `vllm bench serve --save-result` writes, with or without `--save-detailed`: one run, one level. Pure.

Field meanings as in vLLM 0.32: `vllm/benchmarks/serve.py` and `vllm/benchmarks/lib/endpoint_request_func.py`. The file
names no version.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from backend.domain.errors import InvalidImport
from backend.domain.figures import finite
from backend.domain.imported.imported_result import (
    TITLES,
    UNNAMED_MODEL,
    Definition,
    FileContents,
    ImportedLatency,
    ImportedLevel,
    is_placeholder,
    measured_latency,
    placeholder_note,
)
from backend.domain.load.load import Load
from backend.domain.validation import first_flaw

TOOL = "vLLM bench"
SIGNS = {"total_token_throughput", "request_throughput", "completed"}
"""Fields that every result of it has."""
EMPTY_CHUNK = (
    Definition(
        "ttft_ms",
        "differs",
        "From the request sent to the first chunk, also an empty one that only names the role, which a chat endpoint "
        "sends "
        "before it computes: earlier than ours.",
    ),
)
PLAIN = (Definition("ttft_ms", "same", "From the request sent to the first chunk; over completions that has text."),)
DEFINITIONS = (
    Definition(
        "tpot_ms",
        "close",
        "(Last chunk - first chunk) / (output tokens - 1): the same where the first chunk holds one token; ours takes "
        "off all "
        "of its tokens.",
    ),
    Definition(
        "chunk_gap_ms",
        "same",
        "What it calls inter-token latency is the time between chunks; with several tokens per chunk that is not the "
        "time per token.",
    ),
    Definition(
        "content_latency_ms",
        "same",
        "What it calls end-to-end latency ends at the last chunk with a choice, not at the last byte of the answer.",
    ),
    Definition(
        "output_tokens_per_s", "same", "All output tokens over the time from the first request to the last answer."
    ),
    Definition("input_tokens_per_s", "same", "All prompt tokens over the same time."),
)


LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "chunk_gap_ms": "itl", "content_latency_ms": "e2el"}
"""Our metrics, and what each is called in the file."""


class _Result(BaseModel):
    """Fields of a result that are read; its statistics are looked up by name."""

    backend: str = ""
    model_id: str = UNNAMED_MODEL
    date: str = ""
    request_rate: float | Literal["inf"] = "inf"
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    duration: float = Field(gt=0, allow_inf_nan=False)
    completed: int = Field(ge=0)
    failed: int = Field(0, ge=0)
    total_input_tokens: int = Field(ge=0)
    total_output_tokens: int = Field(ge=0)
    request_throughput: float | None = None
    output_throughput: float | None = None
    spec_decode_acceptance_rate: float | None = None


def is_result(document: Any) -> bool:
    """Tell whether a document looks like a result of vLLM's bench."""
    return isinstance(document, dict) and set(document) >= SIGNS


def parse_result(name: str, document: dict[str, Any]) -> FileContents:
    """The one level of a run; `name` is the file's. Raises InvalidImport."""
    if "output_throughput" not in document:
        raise InvalidImport(
            f"{name} is a run of vLLM bench that generated nothing (embeddings): there is nothing to compare."
        )
    try:
        result = _Result.model_validate(document)
    except ValidationError as error:
        where = first_flaw(error).field
        raise InvalidImport(
            f"{name} is not as `vllm bench serve --save-result` writes it: `{where}` is wrong."
        ) from None
    if result.ramp_up_strategy:
        raise InvalidImport(f"{name} is a ramp, whose figures are of no one load: measure at one rate or concurrency.")
    if isinstance(result.request_rate, float) and not math.isfinite(result.request_rate):
        result = result.model_copy(update={"request_rate": "inf"})  # as bare JavaScript: all requests at once
    first = EMPTY_CHUNK if "chat" in result.backend else PLAIN
    levels, definitions = (_level(result, document),), (*first, *DEFINITIONS)
    return FileContents(
        TOOL, None, result.model_id, _moment(result.date), levels, definitions, _notes(result, document)
    )


def _level(result: _Result, document: dict[str, Any]) -> ImportedLevel:
    # 1. The load.
    streams = result.max_concurrency
    if result.request_rate != "inf":
        load, streams = Load("rate", float(result.request_rate)), None
    elif streams:
        load = Load("closed", streams)
    else:
        load = Load("burst")
    # 2. Figures of an answer, which there are only where requests were answered and their tokens counted.
    latencies: dict[str, ImportedLatency | None] = dict.fromkeys(LATENCIES)
    input_tokens = output_tokens = output_rate = None
    if result.completed:
        latencies = {metric: measured_latency(_statistics(document, name)) for metric, name in LATENCIES.items()}
        input_tokens = result.total_input_tokens / result.completed
    if result.completed and result.total_output_tokens:
        output_tokens = result.total_output_tokens / result.completed
    if result.total_output_tokens or not result.completed:
        output_rate = finite(result.output_throughput)
    accepted = finite(result.spec_decode_acceptance_rate)
    return ImportedLevel(
        load=load,
        concurrency=streams,
        requests=result.completed + result.failed,
        failed=result.failed,
        duration_s=result.duration,
        **latencies,
        requests_per_s=finite(result.request_throughput),
        input_tokens_per_s=result.total_input_tokens / result.duration,
        output_tokens_per_s=output_rate,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        acceptance_rate=None if accepted is None else accepted / 100,
    )


def _statistics(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the statistics of a latency that the file holds: by default its mean, median and p99."""
    fields = {
        "mean": f"mean_{name}_ms",
        "p50": f"median_{name}_ms",
        **{p: f"{p}_{name}_ms" for p in ("p90", "p95", "p99")},
    }
    return {statistic: document[field] for statistic, field in fields.items() if document.get(field) is not None}


def _moment(stamp: str) -> str | None:
    """`20261121-114108`, in the time of the machine that measured."""
    try:
        return datetime.strptime(stamp, "%Y%m%d-%H%M%S").isoformat(timespec="seconds")
    except ValueError:
        return None


def _notes(result: _Result, document: dict[str, Any]) -> tuple[str, ...]:
    """The tool's own goodput, and which figures were left out."""
    goodput = document.get("request_goodput")
    known = isinstance(goodput, int | float) and not is_placeholder(goodput)
    own = (f"Its own goodput, by limits that the file does not name: {goodput:.3g} requests/s.",) if known else ()
    left_out = []
    if result.completed:
        for metric, name in LATENCIES.items():
            if any(map(is_placeholder, _statistics(document, name).values())):
                left_out.append(TITLES[metric])
        if not result.total_output_tokens:
            left_out.append(TITLES["output_tokens_per_s"])
    return (*own, *placeholder_note(left_out))
