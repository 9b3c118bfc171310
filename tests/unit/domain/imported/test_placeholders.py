"""A placeholder in a result is no figure, and a result that is not read is refused by the name of its tool."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidImport
from backend.domain.imported.imported_result import ImportedResult
from backend.domain.imported.importer import parse_results
from tests.cases.results import READ, VLLM, refused_files, vllm_infinity, written


def imported(document: dict[str, Any]) -> ImportedResult:
    return parse_results([("result.json", written(document))])


@pytest.mark.parametrize(
    ("name", "known", "unknown", "note"),
    [
        (
            "one-token.json",
            {"ttft_ms", "output_tokens_per_s"},
            {"tpot_ms", "chunk_gap_ms"},
            "Inter-token latency, Chunk gap",
        ),
        (
            "reasoning-zero.json",
            {"requests_per_s", "input_tokens_per_s"},
            {"ttft_ms", "tpot_ms", "chunk_gap_ms", "output_tokens_per_s", "output_tokens"},
            "Time to first token, Inter-token latency, Chunk gap, Output tokens/s",
        ),
        ("infinity.json", {"ttft_ms", "tpot_ms", "chunk_gap_ms", "output_tokens_per_s", "requests_per_s"}, set(), None),
        ("not-a-number.json", {"ttft_ms", "tpot_ms", "output_tokens"}, {"output_tokens_per_s", "requests_per_s"}, None),
    ],
)
def test_placeholders_are_no_figures_and_are_named(name: str, known: set[str], unknown: set[str], note: str | None):
    result = imported(READ[name]())
    (level,) = result.levels
    assert level.load.cell == 4 and level.concurrency == 4
    assert all(getattr(level, metric) is not None for metric in known)
    assert all(getattr(level, metric) is None for metric in unknown)
    assert not {each.metric for each in result.definitions} & unknown
    assert [message.startswith(f"Left out: {note}; zeros, Infinity or NaN") for message in result.notes] == (
        [True] if note else []
    )


@pytest.mark.parametrize(("name", "content", "sentence"), refused_files())
def test_a_result_that_is_not_read_is_refused_by_the_name_of_its_tool(name: str, content: bytes, sentence: str):
    with pytest.raises(InvalidImport) as refused:
        parse_results([(name, content)])
    assert str(refused.value).startswith(f"{name} {sentence}")


def test_where_every_request_failed_zero_tokens_a_second_are_a_figure():
    failed = {
        "completed": 0,
        "failed": 16,
        "total_output_tokens": 0,
        "output_throughput": 0.0,
        "request_throughput": 0.0,
    }
    (level,) = imported(VLLM | failed).levels
    assert (level.output_tokens_per_s, level.requests_per_s, level.ttft_ms) == (0.0, 0.0, None)


NUMBERS = st.sampled_from([0, 0.0, -0.0, math.inf, -math.inf, math.nan, 5, 12.5, None])


@given(
    st.dictionaries(
        st.sampled_from(sorted(name for name in VLLM if name.endswith("_ms") or "throughput" in name)), NUMBERS
    )
)
def test_any_placeholder_is_none_and_every_other_figure_is_the_files(changed: dict[str, float | None]):
    document = vllm_infinity() | changed
    (level,) = imported(document).levels
    for metric, name in (("ttft_ms", "ttft"), ("tpot_ms", "tpot"), ("chunk_gap_ms", "itl")):
        values = [document.get(f"{statistic}_{name}_ms") for statistic in ("mean", "median", "p99")]
        figures = [each for each in values if each is not None]
        spread = getattr(level, metric)
        if not figures or any(each == 0 or not math.isfinite(each) for each in figures):
            assert spread is None
        else:
            assert [spread.mean, spread.p50, spread.p99] == values
    assert json.loads(level.model_dump_json())
