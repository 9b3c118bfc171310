"""The gateway between a client and a server on real sockets: what passes through it, and how it ends."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from backend.domain.limits.slo import Slo
from backend.domain.what_if.portfolio import make_portfolio
from tests.fakes.scripted_upstream import WAIT_S, Step, event, scripted_upstream, stream, whole
from tests.helpers.crossing_evaluation import crossing
from tests.helpers.running_gateway import (
    CHAT,
    MODEL,
    TOKEN,
    Connection,
    ask,
    client_key,
    require_ok,
    running_gateway,
    upstream_at,
)
from tests.homes import eventually

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
EVENTS = [
    event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
    event({"choices": [{"delta": {"content": "h\u00e9llo \U0001f600"}}]}),
    b": a comment\n\n",
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
]


def test_a_stream_passes_byte_for_byte_and_chunk_for_chunk(tmp_path: Path) -> None:
    gates = [threading.Event() for _ in EVENTS]
    steps = [part for pair in zip(gates, EVENTS, strict=True) for part in pair]
    with (
        scripted_upstream(stream(*steps)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, [client_key()]) as running,
        closing(Connection(running.port)) as client,
    ):
        client.send(body={"temperature": 0})
        status, headers = client.read_head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        for gate, expected in zip(gates, EVENTS, strict=True):
            gate.set()  # the next chunk leaves the server only when the one before has arrived
            assert client.read_chunk() == expected
        assert client.read_chunk() == b""
        assert running.metric("in_flight", model=MODEL, key="app") is not None
        running.stop()
        (line,) = running.log_lines()
        assert (line["key"], line["model"], line["status"], line["error"]) == ("app", MODEL, 200, None)
        assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 2)
        assert 0 < line["ttft_ms"] <= line["duration_ms"] and "request" not in line
        assert running.metric("requests_total", model=MODEL, key="app", status="200") == 1
        assert running.metric("in_flight", model=MODEL, key="app") == 0
        assert running.metric("ttft_seconds_count", model=MODEL, key="app") == 1
        assert running.metric("tokens_total", model=MODEL, key="app", direction="completion") == 2


def test_bytes_that_are_no_events_and_large_chunks_pass_unchanged(tmp_path: Path) -> None:
    chunks = [bytes(range(256)) * 8, b"\x00\xff\n", b"x" * 300_000, b"\n\n"]
    with (
        scripted_upstream(stream(*chunks)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        reply = require_ok(ask(running.port))
        assert reply.body == b"".join(chunks)


def test_the_server_gets_its_own_key_and_name_and_no_other_header(tmp_path: Path) -> None:
    served = upstream_at("http://127.0.0.1:1", served_name="the server's name")
    with scripted_upstream(whole({"usage": USAGE})) as upstream:
        served = served.model_copy(update={"base": upstream.base})
        with running_gateway([served], tmp_path, [client_key()]) as running:
            body = {"model": "a-123", "stream": False, "messages": [{"role": "user", "content": "\U0001f600 \u00e9"}]}
            reply = require_ok(ask(running.port, body=body, cookie="c=1", x_request_id="r-1", accept_encoding="gzip"))
        (request,) = upstream.requests
        assert reply.chunks == [json.dumps({"usage": USAGE}).encode()]
        assert request.path == CHAT and request.document == body | {"model": "the server's name"}
        assert request.headers["authorization"] == "Bearer own" and TOKEN not in str(request.headers)
        assert request.headers["x-request-id"] == "r-1"
        assert not request.headers.keys() & {"cookie", "accept-encoding"}
    (line,) = running.log_lines()
    assert (line["model"], line["completion_tokens"], line["ttft_ms"]) == (MODEL, 2, None)


def test_a_body_with_the_servers_name_is_passed_on_as_it_is(tmp_path: Path) -> None:
    body = b'{ "model" :"starter",  "n": 1.50, "n": 2 }'
    with (
        scripted_upstream(whole({})) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        require_ok(ask(running.port, "/v1/completions", body))
        large = json.dumps({"model": MODEL, "prompt": "x" * 2**21}).encode()
        require_ok(ask(running.port, "/v1/embeddings", large))
        assert [request.body for request in upstream.requests] == [body, large]


def test_a_server_that_refuses_is_passed_back_and_counted(tmp_path: Path) -> None:
    refusal = {"error": {"message": "max_tokens is too large", "type": "BadRequestError"}}
    with (
        scripted_upstream(whole(refusal, "400 Bad Request")) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        reply = ask(running.port)
        assert (reply.status, reply.error) == (400, refusal["error"])
        running.stop()
        assert running.metric("errors_total", model=MODEL, key="", kind="http_400") == 1


def test_a_client_that_leaves_cancels_the_request_at_the_server(tmp_path: Path) -> None:
    with (
        scripted_upstream(stream(EVENTS[0], Step.STALL)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        client = Connection(running.port)
        client.send()
        client.read_head()
        assert client.read_chunk() == EVENTS[0]
        assert not upstream.left.is_set()
        client.close()
        assert upstream.left.wait(WAIT_S), "the server was not told"
        running.stop()
        (line,) = running.log_lines()
        assert (line["status"], line["error"]) == (200, "client_left")
        assert running.metric("errors_total", model=MODEL, key="", kind="client_left") == 1
        assert running.metric("in_flight", model=MODEL, key="") == 0


def test_a_client_that_leaves_before_the_answer_cancels_it_too(tmp_path: Path) -> None:
    with (
        scripted_upstream([Step.STALL]) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        client = Connection(running.port)
        client.send()
        upstream.await_request()
        client.close()
        assert upstream.left.wait(WAIT_S), "the server was not told"
        running.stop()
        (line,) = running.log_lines()
        assert (line["status"], line["error"]) == (None, "client_left")


def test_a_client_that_stops_reading_frees_its_server(tmp_path: Path) -> None:
    large = event({"choices": [{"text": "x" * 2**20}]})
    with (
        scripted_upstream(stream(*[large] * 64, Step.STALL)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, unread_s=0.2) as running,
    ):
        with closing(Connection(running.port)) as client:
            client.send()
            upstream.await_request()
            eventually("the server is free", lambda: running.metric("in_flight", model=MODEL, key="") == 0)
        running.stop()
        (line,) = running.log_lines()
        assert (line["status"], line["error"]) == (200, "client_stalled")


def test_a_server_that_stalls_before_its_answer_is_504(tmp_path: Path) -> None:
    with (
        scripted_upstream([Step.STALL]) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, stall_s=0.2) as running,
    ):
        reply = ask(running.port)
        assert reply.status == 504 and reply.error["code"] == "upstream_stalled"
        assert "sent no byte for 0.2 s" in reply.error["message"]
        assert upstream.left.wait(WAIT_S)


def test_a_stream_that_stalls_ends_with_an_error_and_without_its_end(tmp_path: Path) -> None:
    with (
        scripted_upstream(stream(EVENTS[1], Step.STALL)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, stall_s=2.0) as running,
    ):
        reply = ask(running.port)
        assert reply.status == 200 and not reply.is_whole
        assert reply.chunks[0] == EVENTS[1] and len(reply.chunks) == 2
        error = json.loads(reply.chunks[1].removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "upstream_stalled")
        running.stop()
        assert running.metric("errors_total", model=MODEL, key="", kind="upstream_stalled") == 1


@pytest.mark.parametrize(
    ("last", "with_error"), [(EVENTS[1], True), (EVENTS[1][:-1], False), (b'data: {"choices": [', False)]
)
def test_a_server_that_dies_within_a_stream_leaves_it_without_its_end(
    tmp_path: Path, last: bytes, with_error: bool
) -> None:
    """An error follows only a whole event: behind half of one it would be read as part of it."""
    with (
        scripted_upstream(stream(EVENTS[0], last, threading.Event(), Step.DIE)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
        closing(Connection(running.port)) as client,
    ):
        gate = next(step for step in upstream.steps if isinstance(step, threading.Event))
        client.send()
        client.read_head()
        assert [client.read_chunk(), client.read_chunk()] == [EVENTS[0], last]
        gate.set()
        rest = client.read_chunk()
        if with_error:
            assert rest is not None and b'"upstream_died"' in rest
            rest = client.read_chunk()
        assert rest is None
        running.stop()
        assert running.metric("errors_total", model=MODEL, key="", kind="upstream_died") == 1


def test_a_server_that_dies_before_its_answer_is_502(tmp_path: Path) -> None:
    with (
        scripted_upstream([Step.DIE]) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        reply = ask(running.port)
        assert reply.status == 502 and reply.error["code"] == "upstream_died" and reply.error["type"] == "server_error"
        assert len(upstream.requests) == 1, "a request that may have been computed is not sent again"


def test_a_whole_answer_that_breaks_off_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with (
        scripted_upstream([head, Step.DIE]) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        reply = ask(running.port, body={"stream": False})
        assert not reply.is_whole


def test_a_server_that_is_gone_is_502(tmp_path: Path) -> None:
    with scripted_upstream() as upstream:
        stopped = upstream_at(upstream.base)
    with running_gateway([stopped], tmp_path) as running:
        reply = ask(running.port)
        assert reply.status == 502 and reply.error["code"] == "upstream_unreachable"
        assert reply.error["message"].endswith("see the log of job j-1.")


def test_a_server_that_refuses_the_gateways_key_does_not_blame_the_client(tmp_path: Path) -> None:
    with (
        scripted_upstream(whole({}, "401 Unauthorized")) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path) as running,
    ):
        reply = ask(running.port)
        assert (reply.status, reply.error["code"]) == (502, "upstream_refused")


def test_content_is_logged_only_where_it_is_wanted(tmp_path: Path) -> None:
    with (
        scripted_upstream(whole({"answer": "forty-two"})) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, log_content=True) as running,
    ):
        require_ok(ask(running.port, body={"prompt": "what is six times seven"}))
    (line,) = running.log_lines()
    assert "six times seven" in line["request"] and "forty-two" in line["answer"]
    assert oct((tmp_path / "gateway.log").stat().st_mode & 0o777) == "0o600"


def test_requests_for_auto_go_to_the_variant_of_the_load_and_none_is_lost(tmp_path: Path) -> None:
    portfolio = make_portfolio(crossing(), Slo())
    gate = threading.Event()
    steps = stream(EVENTS[0], gate, EVENTS[-1])
    with ExitStack() as stack:
        low, high = (stack.enter_context(scripted_upstream(steps)) for _ in range(2))
        upstreams = [
            upstream_at(server.base, name=name, source=f"a-{name}", served_name=name)
            for server, name in ((low, "low"), (high, "high"))
        ]
        running = stack.enter_context(running_gateway(upstreams, tmp_path, portfolio=portfolio))
        # 1. Six requests at the same time, each sent when the one before is being answered.
        clients = [stack.enter_context(closing(Connection(running.port))) for _ in range(6)]
        for client in clients:
            client.send(body={"model": "auto"})
            assert client.read_head()[0] == 200 and client.read_chunk() == EVENTS[0]
        assert (len(low.requests), len(high.requests)) == (3, 3)
        assert {request.document["model"] for request in high.requests} == {"high"}
        # 2. All end whole, and the next one is a load of one stream again.
        gate.set()
        assert all((client.read_chunk(), client.read_chunk()) == (EVENTS[-1], b"") for client in clients)
        while running.gateway.portfolio and running.gateway.portfolio.in_flight:
            ask(running.port, "/health", method="GET")  # a turn of the gateway, in which requests are counted out
        require_ok(ask(running.port, body={"model": "auto"}))
        assert (len(low.requests), len(high.requests)) == (4, 3)
        listed = json.loads(ask(running.port, "/v1/models", method="GET").body)["data"]
        assert [row["id"] for row in listed][:1] == ["auto"]
