"""How many requests a run had, and how often the prefix cache answered: in report, page and terminal alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.results.measurement_conditions import validity_rows
from backend.cli.text.levels import levels_table
from backend.domain.evaluation.document import EvaluateOptions
from backend.evaluate.report.report import render
from backend.present.words.measurements import cache_hits, requests_asked
from tests import simulated


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"concurrency": (1, 4)}, "6 at 1 stream, 12 at 4 streams (three per stream, at least 6)"),
        ({"rate": (2.0,)}, "20 at 2 requests/s (ten seconds at this rate, at least 8)"),
        ({"concurrency": (4,), "requests": 12}, "12"),
        ({"concurrency": (4,), "seconds": 30.0}, "as many as fit in 30 s"),
    ],
)
def test_how_many_requests_is_a_number(chosen: dict[str, Any], words: str) -> None:
    """It said "as many as the workload gives" of 8 of 160."""
    assert requests_asked(EvaluateOptions(**chosen)) == words


def test_hits_of_the_prefix_cache_are_shown_beside_what_the_workload_repeats() -> None:
    """They were read and shown nowhere."""
    replayed = simulated.level(4, prefix_cache_hit_rate=0.479, prefix_cache_expected=0.0)
    assert (
        cache_hits(replayed) == "48% (the workload repeats 0% at most)"
        and cache_hits(simulated.level(1)) == "not reported"
    )
    results = [simulated.result(name, [simulated.level(1), replayed]) for name in ("starter", "w8a8")]
    document = simulated.evaluation().model_copy(update={"variants": results})
    assert [row["Prefix-cache hits"] for row in validity_rows(document)] == ["not reported", cache_hits(replayed)] * 2
    assert cache_hits(replayed) in render(document)
    table = levels_table([("w8a8", json.loads(replayed.model_dump_json()))])
    assert "cache hits" in table and "0.479" in table and "not valid: " in table
