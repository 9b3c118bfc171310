"""The definitions of measuring.md on records made by hand, and the order statistics against numpy and scipy."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.domain.evaluation.answer_agreement import is_looping
from backend.domain.evaluation.metrics import (
    prefill_share,
    steady_window,
    summarise_level,
    summary,
    tokens_between,
    tpot_s,
)
from backend.domain.evaluation.prices import Pricing
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.domain.maths.intervals import mean_ci95, percentile

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


def answer(start: float = 100.0, **changed: Any) -> RequestRecord:
    """4 chunks of 2 tokens, the first after 0.5 s, then every 0.1 s; complete 0.2 s after the last."""
    times = tuple(start + 0.5 + 0.1 * n for n in range(4))
    fields: dict[str, Any] = {
        "index": 0,
        "stream": 0,
        "prompt": 0,
        "warm": False,
        "intended": start - 0.01,
        "sent": start,
        "first_content": times[0],
        "last_content": times[-1],
        "end": times[-1] + 0.2,
        "chunk_times": times,
        "chunk_tokens": (2.0, 4.0, 6.0, 8.0),
        "token_times": "continuous",
        "status": "ok",
        "prompt_tokens": 10,
        "output_tokens": 8,
        "text": "some text",
    }
    return RequestRecord(**(fields | changed))


def failed(status: str, start: float = 100.0, **changed: Any) -> RequestRecord:
    return RequestRecord(
        **(
            {
                "index": 0,
                "stream": 0,
                "prompt": 0,
                "warm": False,
                "intended": start,
                "end": start + 0.1,
                "status": status,
            }
            | changed
        )
    )


def audit(**changed: Any) -> Audit:
    fields: dict[str, Any] = dict.fromkeys(
        ("loop_lag_ms_p50", "loop_lag_ms_p99", "loop_lag_ms_max", "coalesced_share"), 0.0
    )
    fields |= {"wall_s": 1.0, "cpu_s": 0.1, "parse_cpu_s": 0.1, "achieved_concurrency": 1.0}
    fields |= {"steady_start": None, "steady_end": None, "usage": "continuous", "client_limited": False}
    return Audit(**(fields | changed))


def level(*repeats: list[RequestRecord], **changed: Any):
    options = {"pricing": None, "acceptance": None} | changed
    return summarise_level(Load("closed", 1), repeats, [audit() for _ in repeats], **options)


def test_one_answer_gives_the_defined_latencies():
    measured_level = level([answer()])
    assert measured_level.ttft_ms.mean == pytest.approx(500)
    assert measured_level.tpot_ms.mean == pytest.approx(300 / 6)
    assert measured_level.chunk_gap_ms.mean == pytest.approx(100)
    assert measured_level.tokens_per_chunk == 2
    assert measured_level.client_latency_ms.mean == pytest.approx(1000)
    assert measured_level.content_latency_ms.mean == pytest.approx(800)


def test_throughput_is_tokens_over_the_duration_of_the_level():
    measured_level = level([answer(100), answer(101)])
    assert measured_level.duration_s == pytest.approx(2)
    assert measured_level.output_tokens_per_s == pytest.approx(8)
    assert measured_level.input_tokens_per_s == pytest.approx(10)
    assert (
        measured_level.output_tokens_per_s_per_request,
        measured_level.input_tokens_per_s_per_request,
    ) == pytest.approx((8, 10))
    assert (measured_level.input_tokens, measured_level.output_tokens) == (10, 8)


def test_warm_up_counts_nowhere_but_in_the_steady_window():
    warm = answer(99, warm=True, stream=1)
    late = answer(99.5, stream=1)
    measured_level = level([answer(98, warm=True), warm, answer(99.0), late, answer(100.0)])
    assert measured_level.invocations == measured_level.requests == 3
    assert measured_level.duration_s == pytest.approx(2)
    assert measured_level.audit.warmup_requests == 2
    # Window (100, 100.5]: the 4 chunks of `late` arrive from 100.0 (outside) to 100.3, the last answer's first at
    # 100.5.
    assert steady_window([warm, late]) == pytest.approx((100, 100.5))


def test_steady_tokens_are_counted_by_their_time_of_arrival():
    assert tokens_between([answer()], 100.55, 100.75) == 4
    assert tokens_between([answer()], 0, 1000) == 8
    assert tokens_between([answer()], 0, 100.4) == 0


def test_without_warm_up_the_window_opens_when_every_stream_has_sent():
    assert steady_window([answer(100), answer(100.4, stream=1)]) == pytest.approx((100.4, 101))


def test_streams_that_never_overlap_have_no_steady_window():
    assert steady_window([answer(100), answer(105, stream=1)]) is None
    assert level([answer(100), answer(105, stream=1)]).steady_output_tokens_per_s is None


def test_an_answer_in_one_chunk_has_no_inter_token_latency():
    assert tpot_s(answer(chunk_times=(100.5,), chunk_tokens=(8.0,))) is None
    assert level([answer(chunk_times=(100.5,), chunk_tokens=(8.0,))]).tpot_ms is None


def test_each_failure_is_counted_under_its_kind_and_gives_no_latency():
    measured_level = level([failed("timeout"), failed("http_429"), failed("http_429", sent=100.0), answer()])
    assert measured_level.errors == {"http_429": 2, "timeout": 1}
    assert (measured_level.invocations, measured_level.invocation_errors) == (4, 3)
    assert measured_level.ttft_ms.mean == pytest.approx(500)


def test_a_level_of_failures_alone_has_no_latency_and_no_price():
    measured_level = level([failed("refused")], pricing=Pricing(per_hour=1))
    assert measured_level.ttft_ms is measured_level.tpot_ms is measured_level.client_latency_ms is None
    assert measured_level.output_tokens_per_s == 0
    assert set(measured_level.price.model_dump().values()) == {None}


def test_a_level_without_any_record_is_empty_and_not_an_error():
    assert level([]).invocations == 0


def test_text_without_a_token_count_is_tokenizer_failed_and_no_text_is_empty():
    measured_level = level([answer(output_tokens=None, chunk_tokens=(), prompt_tokens=None, token_times="none")])
    assert (measured_level.tokenizer_failed, measured_level.empty_responses, measured_level.invocation_errors) == (
        1,
        1,
        0,
    )
    assert measured_level.ttft_ms is not None
    assert measured_level.tpot_ms is None


SILENT: dict[str, Any] = {"output_tokens": None, "chunk_tokens": (), "prompt_tokens": None, "token_times": "none"}
THROUGHPUTS = ("input_tokens_per_s", "output_tokens_per_s", "steady_output_tokens_per_s")


@pytest.mark.parametrize("others", [[], [answer(101)], [answer(101), failed("reset", 102)]])
def test_answers_without_token_counts_have_no_throughput_and_no_token_price(
    others: list[RequestRecord],
):
    measured_level = level([answer(**SILENT), *others], pricing=Pricing(per_hour=1))
    assert [getattr(measured_level, name) for name in THROUGHPUTS] == [None, None, None]
    assert set(measured_level.price.model_dump().values()) == {None}
    assert not {name for name in measured_level.blocks[0] if name in THROUGHPUTS or name.startswith("price")}
    answered = 1 + sum(record.ok for record in others)
    assert measured_level.requests_per_s == pytest.approx(answered / measured_level.duration_s)


def test_a_repeat_with_all_token_counts_keeps_its_figure_and_the_level_has_none():
    measured_level = level([answer()], [answer(**SILENT)])
    assert measured_level.output_tokens_per_s is None
    assert [block.get("output_tokens_per_s") for block in measured_level.blocks] == [pytest.approx(8), None]


def test_token_counts_missing_in_warm_up_leave_throughput_but_no_steady_figure():
    measured_level = level([answer(98, warm=True, **SILENT), answer(99), answer(99.5, stream=1)])
    assert measured_level.output_tokens_per_s is not None and measured_level.steady_output_tokens_per_s is None


def test_output_tokens_alone_give_the_output_side_alone():
    measured_level = level([answer(prompt_tokens=None)], pricing=Pricing(per_hour=1))
    assert (measured_level.input_tokens_per_s, measured_level.output_tokens_per_s) == (None, pytest.approx(8))
    assert measured_level.price.per_million_input is measured_level.price.per_million_total is None
    assert measured_level.price.per_million_output is not None


def test_an_empty_answer_has_no_tokens_but_without_any_count_nothing_was_counted():
    nothing = SILENT | {"chunk_times": (), "first_content": None, "last_content": None, "text": ""}
    assert level([answer(100), answer(101, **nothing)]).output_tokens_per_s > 0
    assert level([answer(**nothing)]).output_tokens_per_s is None


def test_an_answer_without_content_is_empty_and_gives_no_latency():
    nothing = {
        "chunk_times": (),
        "chunk_tokens": (),
        "first_content": None,
        "last_content": None,
        "text": "",
        "output_tokens": 0,
    }
    measured_level = level([answer(**nothing)])
    assert (measured_level.tokenizer_failed, measured_level.empty_responses) == (0, 1)
    assert measured_level.client_latency_ms is None


def test_acceptance_is_accepted_over_drafted():
    assert level([answer()], acceptance=(30, 40)).acceptance_rate == 0.75
    assert level([answer()], acceptance=(0, 0)).acceptance_rate is None


def test_one_client_limited_repeat_marks_the_level_and_says_why():
    audits = [audit(), audit(client_limited=True, reason="too slow")]
    result = summarise_level(Load("closed", 1), [[answer()], [answer()]], audits, pricing=None, acceptance=None)
    assert result.client_limited
    assert result.audit.reasons == ("too slow",)


def test_a_block_holds_one_repeats_figures():
    blocks = level([answer()], [answer(output_tokens=7)], pricing=Pricing(per_hour=3.6)).blocks
    assert [block["output_tokens_per_s"] for block in blocks] == pytest.approx([8, 7])
    assert blocks[0]["ttft_ms"] == blocks[0]["ttft_ms_p95"] == pytest.approx(500)
    assert blocks[0]["tpot_ms_p50"] == pytest.approx(50)
    assert blocks[0]["price_per_million_output"] == pytest.approx(1 / 0.008)


def test_a_block_leaves_out_what_was_not_measured():
    assert "tpot_ms" not in level([failed("reset")]).blocks[0]


def test_the_interval_of_a_level_is_over_its_repeats():
    repeats = [[answer(first_content=100 + seconds)] for seconds in (0.4, 0.5, 0.6)]
    low, high = level(*repeats).ttft_ms.ci95
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, loc=500, scale=100 / 3**0.5))
    assert level(repeats[0]).ttft_ms.ci95 is None


def test_the_prefill_share_is_ttft_over_content_latency():
    assert prefill_share([answer(), answer()]) == pytest.approx(500 / 800)


@given(samples, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], q: float):
    assert percentile(sorted(values), q) == pytest.approx(numpy.percentile(values, q), rel=1e-9, abs=1e-6)


def test_a_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_the_interval_of_the_mean_is_scipys(means: list[float]):
    scale = numpy.std(means, ddof=1) / len(means) ** 0.5
    low, high = mean_ci95(means)
    expected = (
        stats.t.interval(0.95, len(means) - 1, loc=numpy.mean(means), scale=scale)
        if scale > 0
        else (means[0], means[0])
    )
    assert (low, high) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.lists(samples, min_size=1, max_size=4))
def test_a_summary_lies_within_its_sample(repeats: list[list[float]]):
    result = summary(repeats)
    values = [value for repeat in repeats for value in repeat]
    assert min(values) <= result.p50 <= result.p90 <= result.p95 <= result.p99 <= max(values)


def test_a_summary_of_nothing_is_none():
    assert summary([[], []]) is None


@pytest.mark.parametrize(
    "text",
    [
        "so it goes on " * 6,
        "def f(): " + "return x\n    " * 8,
        "=" * 40,
        "start. " + "abcdefghij" * 4,
        "loop " * 20 + "  \n\n",
    ],
)
def test_a_repeating_end_is_looping(text: str):
    assert is_looping(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "word",
        "the end of a sentence that says one thing and then another, at some length.",
        "=" * 31,
        "a loop in the middle " + "again " * 20 + "but then the text goes on to its proper end.",
        "abcdefghijklm" * 3,
        "x = 1" + " " * 80,
    ],
)
def test_an_end_that_does_not_repeat_is_not_looping(text: str):
    assert not is_looping(text)


@given(st.text("ab ", max_size=40), st.text("abc", min_size=1, max_size=12), st.integers(1, 40))
def test_looping_is_what_its_definition_says(before: str, cycle: str, times: int):
    text = (before + cycle * times).rstrip()
    expected = any(
        len(text) >= max(32, 4 * p) and all(text[-i] == text[-i - p] for i in range(1, max(32, 4 * p) - p + 1))
        for p in range(1, len(text) // 4 + 1)
    )
    assert is_looping(text) == expected


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"url": "ftp://host"}, "http://HOST"),
        ({"url": "http://user:secret@host"}, "credentials"),
        ({"url": "http://host/?x=1"}, "path"),
        ({"requests": None, "seconds": None}, "never end"),
    ],
)
def test_an_impossible_plan_is_refused(wrong: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        LoadPlan(
            **({"url": "http://host:1", "model": "m", "load": Load("closed", 1), "requests": 1, "prompts": "p"} | wrong)
        )
