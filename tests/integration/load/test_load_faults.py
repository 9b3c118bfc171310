"""Every way in which a server can fail, against a real server that fails that way: counted where it belongs, never a
crash."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import EndpointUnreachable
from backend.domain.evaluation.document import Level
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.endpoint import check_endpoint, models
from backend.evaluate.load import run_level
from tests.fakes.running import ask, running, write_prompts

Endpoint = str


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running("broken_server.py") as url:
        yield url


def run(url: str, fault: str, folder: Path, **changed: Any) -> tuple[list[RequestRecord], Audit, Level]:
    fields = {
        "load": Load("closed", 2),
        "requests": 4,
        "warmup_requests": 1,
        "timeout_s": 30.0,
        "prompts": write_prompts(folder),
    }
    plan = LoadPlan(**({"url": url, "model": fault} | fields | changed))
    records, audit = run_level(plan, folder / "level")
    return records, audit, summarise_level(plan.load, [records], [audit], pricing=None, acceptance=None)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("reset_midway", "reset", "reset"),
        ("close_midway", "truncated", "closed before the answer was complete"),
        ("close_unanswered", "reset", "closed without an answer"),
        ("malformed_event", "malformed", "not JSON"),
        ("malformed_chunk", "malformed", "chunk"),
        ("not_http", "malformed", "220 mail"),
        ("html", "malformed", "text/html"),
        ("html_as_json", "malformed", "not JSON"),
        ("http_429", "http_429", "slow down"),
        ("http_503", "http_503", "overloaded"),
        ("error_event", "server_error", "engine died"),
        ("no_ending", "truncated", "DONE"),
        ("no_events", "truncated", "DONE"),
        ("always_400", "http_400", "too long"),
    ],
)
def test_a_fault_is_counted_under_its_kind_with_its_reason(
    server: str, tmp_path: Path, fault: str, kind: str, words: str
):
    records, _, level = run(server, fault, tmp_path)
    assert level.errors == {kind: 4}
    assert (level.invocations, level.invocation_errors, level.tokenizer_failed, level.empty_responses) == (4, 4, 0, 0)
    assert level.ttft_ms is level.client_latency_ms is None
    assert all(words in (record.error or "") for record in records)


@pytest.mark.parametrize("fault", ["hang", "hang_midway"])
def test_a_server_that_hangs_is_a_timeout(server: str, tmp_path: Path, fault: str):
    _, _, level = run(server, fault, tmp_path, timeout_s=0.3, requests=2, warmup_requests=0)
    assert level.errors == {"timeout": 2}


@pytest.mark.parametrize(
    "shape",
    ["ok", "bytewise", "crlf", "one_write", "until_close", "until_done", "close_after", "role_first"],
)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_way_of_sending_gives_the_same_answer(server: str, tmp_path: Path, shape: str, endpoint: str):
    records, _, level = run(server, shape, tmp_path, endpoint=endpoint)
    assert level.errors == {}
    assert {record.text for record in records} == {"the quick brown fox jumps over it all "}
    assert {record.output_tokens for record in records} == {8}
    assert {record.prompt_tokens for record in records} == {5}
    assert {record.finish_reason for record in records} == {"length"}
    assert level.tokens_per_chunk == 1


def test_an_answer_that_is_not_streamed_is_one_chunk(server: str, tmp_path: Path):
    records, _, level = run(server, "not_streamed", tmp_path)
    assert {len(record.chunk_times) for record in records} == {1}
    assert (level.errors, level.output_tokens, level.tpot_ms) == ({}, 8, None)


def test_an_early_empty_role_chunk_is_not_the_first_token(server: str, tmp_path: Path):
    _, _, level = run(server, "role_first", tmp_path, endpoint="chat")
    assert level.ttft_ms is not None
    assert level.ttft_ms.p50 > 140  # the server waits 150 ms after the empty chunk


def test_several_tokens_a_chunk_divide_the_inter_token_latency(server: str, tmp_path: Path):
    records, _, level = run(server, "four_tokens", tmp_path)
    assert level.tokens_per_chunk == 4
    assert {record.chunk_tokens for record in records} == {(4, 8, 12, 16)}
    assert level.tpot_ms is not None
    assert level.chunk_gap_ms is not None
    assert level.tpot_ms.mean == pytest.approx(level.chunk_gap_ms.mean / 4)


def test_text_without_usage_is_tokenizer_failed(server: str, tmp_path: Path):
    _, _, level = run(server, "no_usage", tmp_path)
    assert (level.tokenizer_failed, level.invocation_errors, level.output_tokens) == (4, 0, None)
    assert level.ttft_ms is not None


def test_no_content_is_an_empty_response(server: str, tmp_path: Path):
    _, _, level = run(server, "empty", tmp_path)
    assert (level.empty_responses, level.tokenizer_failed, level.invocation_errors) == (4, 0, 0)


def test_a_looping_answer_is_counted(server: str, tmp_path: Path):
    assert run(server, "loops", tmp_path)[2].looping_outputs == 4


def test_a_server_that_refuses_running_usage_is_asked_for_the_total(server: str, tmp_path: Path):
    records, audit, level = run(server, "no_continuous", tmp_path)
    assert (audit.usage, level.errors, level.output_tokens) == ("final", {}, 8)
    assert {record.token_times for record in records} == {"final"}
    assert len(records) == 6


def test_a_server_that_refuses_usage_altogether_is_asked_for_none(server: str, tmp_path: Path):
    _, audit, level = run(server, "no_stream_options", tmp_path)
    assert (audit.usage, level.errors, level.tokenizer_failed) == ("none", {}, 4)


def test_a_total_alone_is_spread_over_the_chunks(server: str, tmp_path: Path):
    records, audit, _ = run(server, "final_usage", tmp_path)
    assert audit.usage == "continuous"
    assert {record.chunk_tokens for record in records} == {(3, 6)}


def test_a_server_that_dies_leaves_records_with_errors(tmp_path: Path):
    with running("broken_server.py", "--die-after", 5) as url:
        records, _, level = run(url, "ok", tmp_path, requests=8)
    assert len(records) == 10
    assert level.invocation_errors == sum(level.errors.values()) > 0
    assert set(level.errors) <= {"reset", "truncated", "refused"}
    assert level.errors["refused"] > 0
    assert level.client_latency_ms is not None


def test_a_port_where_nobody_listens_is_told_before_the_run(tmp_path: Path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EndpointUnreachable, match=r"connection refused.*check that the server is running"):
            run(url, "ok", tmp_path)
    assert not (tmp_path / "level").exists()


def test_a_bearer_token_is_sent_and_never_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WHETSTONE_TOKEN_LOAD_TEST", "sesame-open")
    with running("broken_server.py", "--token", "sesame-open") as url:
        assert run(url, "ok", tmp_path, bearer_env="WHETSTONE_TOKEN_LOAD_TEST")[2].errors == {}
        assert "ok" in models(url, "WHETSTONE_TOKEN_LOAD_TEST")
        records, _, level = run(url, "echo_token", tmp_path, bearer_env="WHETSTONE_TOKEN_LOAD_TEST")
    assert level.errors == {"http_500": 4}
    assert {record.error for record in records} == {"bad header ***"}
    for file in (tmp_path / "level").iterdir():
        assert "sesame" not in file.read_text()


def test_a_wrong_bearer_token_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WHETSTONE_TOKEN_LOAD_TEST", "wrong")
    with running("broken_server.py", "--token", "right") as url, pytest.raises(EndpointUnreachable, match="401"):
        check_endpoint(url, "WHETSTONE_TOKEN_LOAD_TEST")


def test_models_of_a_server_without_a_list_are_told(server: str):
    assert "ok" in models(server)
    with pytest.raises(EndpointUnreachable, match="not with a list of models"):
        models(f"{server}/nowhere")


def test_requests_of_a_level_are_the_same_whatever_the_timing(tmp_path: Path):
    with running("broken_server.py") as url:
        run(url, "ok", tmp_path, requests=5, seed=100)
        reply = ask(f"{url}/seen")
    assert sorted((body["seed"], body["prompt"]) for body in reply) == sorted(
        (100 + n, ("one", "two")[n % 2]) for n in range(2 + 5)
    )
