"""Job records and whole evaluations for reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.what_if.costs import ApiPrice, WhatIf
from backend.domain.workload.workload import parse_workload
from backend.present.report_content import Extras, Requests, Within, gather
from backend.worker.measuring.records import MeasuredLevel
from backend.worker.measuring.report_data import InMemorySource
from tests.helpers.imported_files import BENCH, CONCURRENT, imported
from tests.simulated import evaluation

LINES = parse_workload("lines", b"".join(json.dumps({"prompt": f"prompt {n}"}).encode() + b"\n" for n in range(640)))


def record(index: int, stream: int, text: str = "the same words", **changes: Any) -> RequestRecord:
    """Sent every 0.3 s on its stream, first token after 50 ms, ended after 200 ms."""
    at = 0.3 * index
    fields = {
        "index": index,
        "stream": stream,
        "prompt": index,
        "warm": False,
        "intended": at,
        "sent": at,
        "first_content": at + 0.05,
        "last_content": at + 0.2,
        "end": at + 0.2,
        "chunk_times": (at + 0.05, at + 0.2),
        "chunk_tokens": (1.0, 8.0),
        "status": "ok",
        "output_tokens": 8,
        "text": text,
    }
    return RequestRecord(**(fields | changes))


def requests(document: Evaluation, *, answers: Sequence[str] = ("the same words", "the other words")) -> Requests:
    names = [variant.name for variant in document.variants]
    options = EvaluateOptions(concurrency=(1, 4, 16), repeats=2)
    rows = [
        MeasuredLevel(
            v, Load("closed", c), [[record(n, n % c, answers[min(v, 1)]) for n in range(4 * c)] for _ in range(2)]
        )
        for v in range(len(names))
        for c in options.concurrency
    ]
    results = gather(document, InMemorySource(names, rows, LINES, options))
    assert results is not None
    return results


def whole() -> Extras:
    """Everything that can stand in a report."""
    document = evaluation()
    what_if = WhatIf(
        limits=Slo(ttft_ms=200),
        request_limits={"ttft_ms": 60.0},
        per_hour=2.0,
        discount=0.25,
        price_source="a list",
        api=ApiPrice(per_million_input=0.1, per_million_output=0.4),
        requests_a_month=1e6,
    )
    counted = tuple(Within(variant=r.name, load=Load("closed", 4), within=30, of=40) for r in document.variants)
    return Extras(
        requests=requests(document), what_if=what_if, goodput=counted, imported=(imported(CONCURRENT), imported(*BENCH))
    )
