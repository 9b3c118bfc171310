"""Results of GuideLLM and vLLM's bench, as those tools really wrote them (tests/recorded): what is read, what is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from backend.domain.errors import InvalidImport
from backend.domain.imported.imported_result import definition_rows, figure_rows
from backend.domain.imported.importer import parse_results
from backend.present.charts import alt_text
from backend.present.charts import imported_results as charts_imported
from tests.helpers.imported_files import BENCH, CONCURRENT, CONSTANT, content, imported
from tests.simulated import evaluation


def document(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(content(name))
    return parsed


def test_a_guidellm_report_is_its_levels_with_the_figures_that_it_holds() -> None:
    result, raw = imported(CONCURRENT), document(CONCURRENT)
    assert result.provenance == "imported from GuideLLM 0.8.1"
    assert [level.load.cell for level in result.levels] == [1, 4]
    for level, bench in zip(result.levels, raw["benchmarks"], strict=True):
        metrics = bench["metrics"]
        assert level.ttft_ms and level.tpot_ms and level.client_latency_ms
        assert level.ttft_ms.p95 == metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p95"]
        assert level.tpot_ms.mean == metrics["inter_token_latency_ms"]["successful"]["mean"]
        assert level.client_latency_ms.p99 == pytest.approx(
            metrics["request_latency"]["successful"]["percentiles"]["p99"] * 1000
        )
        assert level.output_tokens_per_s == metrics["output_tokens_per_second"]["successful"]["mean"]
        assert (level.chunk_gap_ms, level.content_latency_ms, level.requests, level.failed) == (None, None, 8, 0)


def test_under_a_rate_guidellms_latency_is_scheduled_and_its_ttft_differs() -> None:
    result, raw = imported(CONSTANT), document(CONSTANT)
    assert [level.load.cell for level in result.levels] == ["4 requests/s", "8 requests/s"]
    scheduled = raw["benchmarks"][0]["metrics"]["request_scheduled_latency"]["successful"]["mean"] * 1000
    assert result.levels[0].client_latency_ms and result.levels[0].client_latency_ms.mean == pytest.approx(scheduled)
    assert {each.metric: each.fit for each in result.definitions}["ttft_ms"] == "differs"
    assert {each.metric: each.fit for each in imported(CONCURRENT).definitions}["ttft_ms"] == "same"


def test_vllms_bench_is_a_file_a_level_and_holds_no_more_than_mean_median_and_p99() -> None:
    result, raw = imported(*reversed(BENCH)), document(BENCH[0])
    assert result.version is None and "names no version" in result.provenance
    assert [level.load.cell for level in result.levels] == [1, 4]
    first = result.levels[0]
    assert first.ttft_ms and first.chunk_gap_ms
    assert (first.ttft_ms.p50, first.ttft_ms.p90, first.ttft_ms.p99) == (
        raw["median_ttft_ms"],
        None,
        raw["p99_ttft_ms"],
    )
    assert first.chunk_gap_ms.mean == raw["mean_itl_ms"]
    assert first.client_latency_ms is first.content_latency_ms is None
    assert first.output_tokens == raw["total_output_tokens"] / raw["completed"]


def test_the_lines_of_an_appended_file_are_the_same_levels() -> None:
    appended = b"\n".join(content(name) for name in BENCH)
    assert parse_results([("runs.json", appended)]).levels == imported(*BENCH).levels


def test_vllms_first_token_over_chat_and_end_to_end_latency_differ_from_ours() -> None:
    raw = {
        **document(BENCH[0]),
        "backend": "openai-chat",
        "mean_e2el_ms": 210.0,
        "median_e2el_ms": 209.0,
        "p90_e2el_ms": 220.0,
    }
    result = parse_results([("chat.json", json.dumps(raw).encode())])
    assert {each.metric: each.fit for each in result.definitions}["ttft_ms"] == "differs"
    level = result.levels[0]
    assert level.client_latency_ms is None
    assert level.content_latency_ms and (level.content_latency_ms.p50, level.content_latency_ms.p90) == (209.0, 220.0)


def test_the_same_files_are_one_result_in_whatever_order_they_come() -> None:
    assert imported(*BENCH).id == imported(*reversed(BENCH)).id != imported(BENCH[0]).id


def changed(name: str, change: Callable[[dict[str, Any]], Any]) -> bytes:
    raw = document(name)
    change(raw)
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not text"),
        (content(CONCURRENT)[:5000], "is not complete JSON (line 1)"),
        (b"[" * 100_000, "is not complete JSON"),
        (b"<html>busy</html>", "is not complete JSON"),
        (b'{"prompt": "hello"}', "no result of a load generator that is known"),
        (b"[1, 2]", "no result of a load generator that is known"),
        (
            changed(CONCURRENT, lambda raw: raw["metadata"].update(version=1)),
            "report of form 1; this version reads form 2",
        ),
        (changed(CONCURRENT, lambda raw: raw.update(benchmarks=[])), "holds no finished benchmark"),
        (
            changed(CONCURRENT, lambda raw: raw["benchmarks"][0]["metrics"].pop("time_to_first_token_ms")),
            "Benchmark 1 of given.json is not as GuideLLM 0.8 writes it: `metrics.time_to_first_token_ms` is wrong",
        ),
        (
            changed(CONCURRENT, lambda raw: raw["benchmarks"][0]["config"]["strategy"].update(type_="trace")),
            "of the kind trace, which has no counterpart",
        ),
        (changed(CONCURRENT, lambda raw: raw["benchmarks"][1].update(duration=-1)), "below zero or not a number"),
        (
            changed(CONCURRENT, lambda raw: [each.update(start_time=1e30) for each in raw["benchmarks"]]),
            "below zero or not a number",
        ),
        (changed(BENCH[0], lambda raw: raw.update(mean_ttft_ms=-1.0)), "below zero or not a number"),
        (changed(BENCH[0], lambda raw: raw.update(duration=0)), "`duration` is wrong"),
        (changed(BENCH[0], lambda raw: raw.update(ramp_up_strategy="linear")), "is a ramp"),
        (changed(BENCH[0], lambda raw: raw.pop("output_throughput")), "generated nothing"),
    ],
)
def test_what_is_no_such_result_is_refused_in_one_sentence(data: bytes, says: str) -> None:
    with pytest.raises(InvalidImport, match=r"given\.json") as refused:
        parse_results([("some/where/given.json", data)])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_of_different_runs_are_not_made_into_one() -> None:
    with pytest.raises(InvalidImport, match="different runs"):
        imported(CONCURRENT, BENCH[0])


def test_a_level_without_an_answer_has_no_latencies_rather_than_zeros() -> None:
    nothing = changed(BENCH[0], lambda raw: raw.update(completed=0, failed=8, total_output_tokens=0, mean_ttft_ms=0.0))
    level = parse_results([("dead.json", nothing)]).levels[0]
    assert (level.ttft_ms, level.output_tokens, level.requests, level.failed) == (None, None, 8, 8)


@given(
    some.recursive(
        some.none() | some.booleans() | some.floats() | some.text(max_size=8) | some.integers(),
        lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    ),
    some.sampled_from(["benchmarks", "metadata", "completed", "duration", "request_rate", "backend", "mean_ttft_ms"]),
    some.sampled_from([CONCURRENT, BENCH[1]]),
)
def test_any_json_is_read_or_refused_in_a_sentence(value: Any, field: str, name: str) -> None:
    given_bytes = json.dumps({**document(name), field: value}).encode()
    try:
        assert parse_results([("any.json", given_bytes)]).levels
    except InvalidImport as refused:
        assert "any.json" in str(refused)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theirs_are_open_marks_with_their_provenance_and_ours_stay_as_they_are(theme: Any) -> None:
    drawn = charts_imported.imported_comparison(evaluation(levels=(1, 4)), [imported(CONCURRENT)], "ttft_ms", theme)
    *traces, theirs = drawn["data"]
    ours = [trace for trace in traces if "markers" in trace["mode"]]  # the legend's line of the whiskers has none
    assert len(ours) == 4
    assert all(not symbol.endswith("-open") for trace in ours for symbol in trace["marker"]["symbol"])
    assert theirs["marker"]["symbol"].endswith("-open") and theirs["name"].endswith("imported")
    assert all("imported from GuideLLM 0.8.1" in message for message in theirs["hovertext"])
    assert "imported from GuideLLM 0.8.1" in alt_text.alt(drawn)
    assert any("imported from GuideLLM 0.8.1" in str(row["Series"]) for row in alt_text.rows(drawn))


def test_a_metric_that_the_file_lacks_is_said_and_not_drawn() -> None:
    drawn = charts_imported.imported_comparison(evaluation(), [imported(*BENCH)], "client_latency_ms")
    assert drawn["data"] == []
    assert charts_imported.NOTHING in alt_text.alt(drawn)


def test_tables_say_every_figure_and_every_definition() -> None:
    results = [imported(CONCURRENT), imported(*BENCH)]
    assert [(row["Result"], row["Concurrency"]) for row in figure_rows(results)] == [
        ("exact (GuideLLM)", "1"),
        ("exact (GuideLLM)", "4"),
        ("exact (vLLM bench)", "1"),
        ("exact (vLLM bench)", "4"),
    ]
    by_name = {(row["Tool"], row["Metric"]): row["With ours"] for row in definition_rows(results)}
    assert by_name["GuideLLM", "Inter-token latency"] == by_name["vLLM bench", "Inter-token latency"] == "nearly"
    assert by_name["vLLM bench", "Chunk gap"] == "coincides"
