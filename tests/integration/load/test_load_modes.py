"""Every way of sending load beside the closed loop, against servers that know what they sent and were asked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.evaluation.document import Level
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.load.arrivals import arrival_offsets
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.evaluate.load import run_level
from tests.fakes.running import ask, running, write_prompts

pytestmark = pytest.mark.alone

Outcome = tuple[list[RequestRecord], Audit, Level]


@pytest.fixture(scope="module")
def exact() -> Iterator[str]:
    with running("exact_server.py", "--rate", 400, "--ttft-ms", 20) as url:
        yield url


def run(url: str, folder: Path, *rows: dict[str, Any], **changed: Any) -> Outcome:
    fields = {"model": "ok", "connections": 64, "max_tokens": 8, "prompts": write_prompts(folder, *rows)}
    plan = LoadPlan(**({"url": url} | fields | changed))
    records, audit = run_level(plan, folder / "level")
    return records, audit, summarise_level(plan.load, [records], [audit], pricing=None, acceptance=None)


def due(records: list[RequestRecord]) -> list[float]:
    """When requests were due, from the first one on."""
    return [record.intended - records[0].intended for record in records]


def test_a_constant_rate_sends_when_due_and_counts_from_there(exact: str, tmp_path: Path) -> None:
    records, audit, level = run(exact, tmp_path, load=Load("rate", 40), seconds=0.5, warmup_seconds=0.25)
    truth = {row["number"]: row for row in ask(f"{exact}/sent")}
    assert due(records) == pytest.approx([n / 40 for n in range(30)])
    assert [record.warm for record in records] == [True] * 10 + [False] * 20
    for record in records:
        sent = truth[int(record.text.split(" ")[0][1:])]
        assert record.ok
        assert record.clock == "intended" and record.sent is not None
        assert record.intended <= record.sent <= sent["received"]
    assert level.ttft_ms is not None
    # its timer counts from the loop's last turn
    served = [1000 * (row["sends"][0] - row["received"]) for row in truth.values()]
    assert level.ttft_ms.mean >= min(served) > 10
    assert (level.load, level.requests) == (Load("rate", 40), 20)
    assert audit.offered_per_s == pytest.approx(40)
    assert (audit.steady_start, audit.steady_end) == (records[10].intended, records[-1].intended)
    assert audit.send_lag_ms_p50 is not None


def test_a_number_of_requests_ends_an_open_loop(exact: str, tmp_path: Path) -> None:
    records, _, level = run(exact, tmp_path, load=Load("rate", 200), requests=7, warmup_seconds=0.02)
    assert (len(records), level.requests) == (11, 7)
    assert [record.prompt for record in records] == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_a_poisson_process_is_that_of_its_seed(exact: str, tmp_path: Path) -> None:
    records, _, _ = run(exact, tmp_path, load=Load("rate", 100), process="poisson", requests=20, seed=5)
    expected = list(islice(arrival_offsets(100.0, "poisson", seed=5), 20))
    assert due(records) == pytest.approx([offset - expected[0] for offset in expected])


def test_a_ramp_goes_from_one_rate_to_the_other_and_has_no_steady_figure(exact: str, tmp_path: Path) -> None:
    records, _, level = run(exact, tmp_path, load=Load("ramp", 100), seconds=0.8)
    assert due(records) == pytest.approx(list(arrival_offsets(0.0, rate_to=100.0, seconds=0.8)))
    assert len(records) == 40
    assert (level.load, level.steady_output_tokens_per_s) == (Load("ramp", 100), None)
    assert "steady_output_tokens_per_s" not in level.blocks[0]


def test_a_trace_is_replayed_at_its_times_whatever_their_order(exact: str, tmp_path: Path) -> None:
    rows = [
        {"prompt": "late", "timestamp": 100.3},
        {"prompt": "first", "timestamp": 100},
        {"prompt": "b", "timestamp": 100.1},
    ]
    records, _, level = run(exact, tmp_path, *rows, load=Load("trace"), max_tokens=2)
    assert due(records) == pytest.approx([0, 0.1, 0.3])
    assert (level.load, level.requests) == (Load("trace"), 3)


def test_a_trace_without_times_is_told_before_the_run(exact: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match='1 of 2 prompts of the trace have no "timestamp", the first is number 2'):
        run(exact, tmp_path, {"prompt": "a", "timestamp": 0}, {"prompt": "b"}, load=Load("trace"))


def test_a_queue_before_a_slow_server_is_in_the_latency(tmp_path: Path) -> None:
    """One answer at a time, each 50 ms or longer, asked for every 10 ms: the last one waits for all the others."""
    with running("exact_server.py", "--ttft-ms", 50, "--slots", 1) as url:
        records, audit, level = run(url, tmp_path, load=Load("rate", 100), requests=8, max_tokens=1)
    latencies = [(record.end - record.intended) * 1000 for record in records]
    assert max(latencies) > 8 * 50 - 7 * 10 - 1
    assert level.client_latency_ms is not None
    assert level.client_latency_ms.p99 == pytest.approx(max(latencies), rel=0.05)
    assert audit.waited == 0


def test_too_few_connections_are_the_clients_doing_and_are_told(tmp_path: Path) -> None:
    with running("exact_server.py", "--ttft-ms", 50) as url:
        records, audit, level = run(url, tmp_path, load=Load("rate", 100), requests=8, max_tokens=1, connections=1)
    assert {record.stream for record in records} == {0}
    assert max(record.end - record.intended for record in records) > (8 * 50 - 7 * 10 - 1) / 1000
    assert level.client_limited
    assert "had to wait for one of the 1 connections" in (audit.reason or "")


def test_connections_are_used_again(tmp_path: Path) -> None:
    with running("exact_server.py", "--ttft-ms", 1) as url:
        records, audit, _ = run(url, tmp_path, load=Load("rate", 10), requests=4, max_tokens=1)
    assert {record.stream for record in records} == {0}
    assert audit.reconnects == 0


SESSION = {"turns": ["first", "second", "third"], "system": "be brief"}
ANSWER = "the quick brown fox jumps over it all "


def test_the_answer_is_part_of_the_next_prompt(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        records, _, level = run(
            url, tmp_path, SESSION, endpoint="chat", load=Load("closed", 1), requests=4, warmup_requests=0
        )
        reply = ask(f"{url}/seen")
    assert [(record.session, record.turn) for record in records] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [[message["content"] for message in body["messages"]] for body in reply] == [
        ["be brief", "first"],
        ["be brief", "first", ANSWER, "second"],
        ["be brief", "first", ANSWER, "second", ANSWER, "third"],
        ["be brief", "first"],
    ]
    assert [message["role"] for message in reply[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert all(later.sent >= earlier.end for earlier, later in pairwise(records) if later.sent)
    assert level.requests == 4


def test_completions_get_the_words_of_a_session(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        run(url, tmp_path, SESSION, load=Load("closed", 1), requests=2, warmup_requests=0)
        assert ask(f"{url}/seen")[1]["prompt"] == f"be brief\nfirst\n{ANSWER}\nsecond"


def test_sessions_in_an_open_loop_begin_when_due_and_go_on_when_answered(exact: str, tmp_path: Path) -> None:
    records, _, _ = run(exact, tmp_path, SESSION, endpoint="chat", load=Load("rate", 20), requests=9)
    assert len(records) == 9
    by_session: dict[int | None, list[RequestRecord]] = {}
    for record in records:
        by_session.setdefault(record.session, []).append(record)
    first = [turns[0].intended for turns in by_session.values()]
    assert [time - first[0] for time in first] == pytest.approx([n / 20 for n in range(len(first))])
    for turns in by_session.values():
        assert [record.turn for record in turns] == list(range(len(turns)))
        assert all(later.intended >= earlier.end for earlier, later in pairwise(turns))


def test_a_session_ends_with_a_failed_turn(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        records, _, level = run(
            url,
            tmp_path,
            {"turns": ["a", "b", "c"]},
            model="fails_at_second_turn",
            endpoint="chat",
            load=Load("closed", 1),
            requests=4,
            warmup_requests=0,
        )
    assert [(record.session, record.turn, record.status) for record in records] == [
        (0, 0, "ok"),
        (0, 1, "http_503"),
        (1, 0, "ok"),
        (1, 1, "http_503"),
    ]
    assert level.errors == {"http_503": 2}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_without_streaming_only_the_whole_answer_is_timed(exact: str, tmp_path: Path, endpoint: str) -> None:
    records, _, level = run(
        exact, tmp_path, stream=False, endpoint=endpoint, load=Load("closed", 2), requests=4, warmup_requests=1
    )
    assert {(record.status, record.streamed, record.output_tokens) for record in records} == {("ok", False, 8)}
    assert level.ttft_ms is level.tpot_ms is level.chunk_gap_ms is level.tokens_per_chunk is None
    assert level.client_latency_ms is not None
    assert level.client_latency_ms.p50 >= 30  # 20 ms and eight tokens at 400 a second, by a coarse timer
    assert (level.output_tokens, level.tokenizer_failed) == (8, 0)
    assert level.output_tokens_per_s > 0


def test_a_server_that_asks_for_patience_gets_it(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        records, _, level = run(
            url, tmp_path, model="retry_after", load=Load("closed", 1), requests=2, warmup_requests=0
        )
    assert level.errors == {"http_429": 2}
    assert records[1].intended - records[0].end > 0.95


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("reset_midway", "reset"), ("http_503", "http_503"), ("malformed_event", "malformed"), ("html", "malformed")],
)
def test_a_fault_in_an_open_loop_is_counted_under_its_kind(tmp_path: Path, fault: str, kind: str) -> None:
    with running("broken_server.py") as url:
        _, _, level = run(url, tmp_path, model=fault, load=Load("rate", 50), requests=5)
    assert (level.errors, level.invocation_errors, level.ttft_ms) == ({kind: 5}, 5, None)


def test_a_server_that_dies_under_a_rate_leaves_records_with_errors(tmp_path: Path) -> None:
    with running("broken_server.py", "--die-after", 4) as url:
        records, _, level = run(url, tmp_path, load=Load("rate", 40), requests=12)
    assert len(records) == 12
    assert set(level.errors) <= {"reset", "truncated", "refused"}
    assert level.errors["refused"] > 0
    assert level.invocation_errors == sum(level.errors.values()) == 12 - sum(record.ok for record in records)


def test_a_server_that_hangs_under_a_rate_is_a_timeout(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        assert run(url, tmp_path, model="hang", load=Load("rate", 50), requests=3, timeout_s=0.3)[2].errors == {
            "timeout": 3
        }


def test_usage_that_is_refused_is_not_asked_for_again_in_an_open_loop(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        records, audit, level = run(url, tmp_path, model="no_continuous", load=Load("rate", 50), requests=4)
    assert (audit.usage, level.errors, len(records)) == ("final", {}, 4)
