"""What the gateway refuses by itself, on real sockets, and how it stops."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path

import pytest

from backend.domain.errors import WorkError
from backend.gateway.keys import ClientKey
from backend.gateway.routes import Upstream
from tests.fakes.scripted_upstream import Step, event, scripted_upstream, stream, whole
from tests.helpers.running_gateway import (
    CHAT,
    MODEL,
    Connection,
    ask,
    client_key,
    require_ok,
    running_gateway,
    upstream_at,
)

NOBODY = upstream_at("http://127.0.0.1:1")
"""A server that no request of these tests may reach."""


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/metrics"])
@pytest.mark.parametrize("sent", ["", "Bearer wrong", "Bearer ", "Basic c2s6"])
def test_a_missing_or_wrong_key_is_401(tmp_path: Path, path: str, sent: str) -> None:
    with running_gateway([NOBODY], tmp_path, [client_key()]) as running:
        reply = ask(running.port, path, method="POST" if path == CHAT else "GET", authorization=sent)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer" and len(reply.error["message"].splitlines()) == 1


def test_a_refused_key_is_counted_without_a_name(tmp_path: Path) -> None:
    with running_gateway([NOBODY], tmp_path, [client_key()]) as running:
        ask(running.port, authorization="Bearer wrong")
        running.stop()
        assert running.metric("errors_total", model="unknown", key="", kind="unauthorized") == 1
        (line,) = running.log_lines()
        assert (line["key"], line["status"]) == (None, 401)


def test_an_unknown_model_is_404_and_lists_those_there_are(tmp_path: Path) -> None:
    with running_gateway([NOBODY], tmp_path) as running:
        reply = ask(running.port, body={"model": "gpt-4"})
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
        assert reply.error["message"] == "The model `gpt-4` is not served here: choose one of starter, a-123."


def test_a_model_that_has_just_started_is_known_at_once(tmp_path: Path) -> None:
    servers = list[Upstream]()
    with (
        scripted_upstream(whole({})) as upstream,
        running_gateway(servers, tmp_path, refresh_s=600) as running,
    ):
        assert ask(running.port).status == 404
        servers.append(upstream_at(upstream.base))
        running.gateway._read_at = 0.0  # as half a second later
        require_ok(ask(running.port))


@pytest.mark.parametrize("error", [WorkError("The database is locked."), ValueError("a defect")])
def test_keys_and_servers_stay_while_they_cannot_be_read_and_are_read_again(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failing, readings = threading.Event(), threading.Semaphore(0)
    keys = [client_key()]

    def read() -> tuple[list[ClientKey], list[Upstream]]:
        readings.release()
        if failing.is_set():
            raise error
        return keys, [NOBODY]

    def await_readings() -> None:
        """Wait for two whole readings that begin from now on."""
        while readings.acquire(blocking=False):
            """Forget those before."""
        for _ in range(3):
            assert readings.acquire(timeout=120)

    with running_gateway([], tmp_path, read=read, refresh_s=0.01) as running:
        failing.set()
        await_readings()
        assert ask(running.port, "/v1/models", method="GET").status == 200
        assert "stay as they were" in caplog.text
        keys.clear()
        failing.clear()
        await_readings()
        assert ask(running.port, "/v1/models", method="GET").status == 401


def test_models_and_health_are_told(tmp_path: Path) -> None:
    with running_gateway([NOBODY], tmp_path, [client_key()]) as running:
        models = json.loads(require_ok(ask(running.port, "/v1/models", method="GET")).body)
        assert [row["id"] for row in models["data"]] == ["starter", "a-123"]
        health = json.loads(require_ok(ask(running.port, "/health", method="GET", authorization="")).body)
        assert health == {"status": "ok", "models": 2, "in_flight": 0}
        metrics = require_ok(ask(running.port, "/metrics", method="GET"))
        assert b"whetstone_gateway_models 2.0" in metrics.body


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/other", 404), ("GET", CHAT, 405)])
def test_another_path_or_method_is_refused_in_the_same_form(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    with running_gateway([NOBODY], tmp_path) as running:
        reply = ask(running.port, path, method=method)
        assert (reply.status, reply.error["code"]) == (status, "unknown_path")


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b"null", b'{"prompt": "x"}', b'{"model": 5}', b"[" * 100_000, b"\xff\xfe"]
)
def test_a_body_that_is_no_request_is_400(tmp_path: Path, body: bytes) -> None:
    with running_gateway([NOBODY], tmp_path) as running:
        reply = ask(running.port, body=body)
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")


def test_a_body_above_the_limit_is_413_whether_or_not_it_says_its_length(tmp_path: Path) -> None:
    with running_gateway([NOBODY], tmp_path, most_body_bytes=1000) as running:
        large = {"prompt": "x" * 1000}
        reply = ask(running.port, body=large)
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")
        with closing(Connection(running.port)) as client:
            body = b"3ea\r\n" + b"x" * 1002 + b"\r\n0\r\n\r\n"
            client.send(body=body, content_length="", transfer_encoding="chunked")
            assert client.read_reply().status == 413


def test_a_key_beyond_its_limit_is_429_and_another_is_not(tmp_path: Path) -> None:
    keys = [client_key("small", "one", 2), client_key("other", "two")]
    with (
        scripted_upstream(whole({})) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, keys) as running,
    ):
        for _ in range(2):
            require_ok(ask(running.port, authorization="Bearer one"))
        reply = ask(running.port, authorization="Bearer one")
        assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        require_ok(ask(running.port, authorization="Bearer two"))
        assert len(upstream.requests) == 3


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"host": "[:"}])
def test_without_keys_a_page_of_another_site_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    with running_gateway([NOBODY], tmp_path) as running:
        reply = ask(running.port, "/v1/models", method="GET", **headers)
        assert (reply.status, reply.error["code"]) == (403, "foreign_page")
        require_ok(ask(running.port, "/v1/models", method="GET", origin="http://localhost:3000"))


def test_a_stop_lets_a_request_end_and_takes_no_other(tmp_path: Path) -> None:
    gate, last = threading.Event(), event({"n": 2})
    with (
        scripted_upstream(stream(event({"n": 1}), gate, last)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, drain_s=20) as running,
        closing(Connection(running.port)) as client,
    ):
        client.send()
        client.read_head()
        client.read_chunk()
        running.server.should_exit = True
        await_refusal(running.port)
        gate.set()
        assert client.read_chunk() == last and client.read_chunk() == b""
        running.stop()
        assert running.sentences == [
            "One request is under way, for at most 20 s. Ctrl-C again ends the gateway at once."
        ]
        (line,) = running.log_lines()
        assert line["error"] is None


def test_a_stop_ends_what_takes_longer_than_the_drain(tmp_path: Path) -> None:
    with (
        scripted_upstream(stream(event({"n": 1}), Step.STALL)) as upstream,
        running_gateway([upstream_at(upstream.base)], tmp_path, drain_s=0.1) as running,
        closing(Connection(running.port)) as client,
    ):
        client.send()
        client.read_head()
        client.read_chunk()
        running.server.should_exit = True
        rest = client.read_chunk()
        assert rest is not None and b'"gateway_stopped"' in rest and client.read_chunk() is None
        assert upstream.left.wait(20)
        running.stop()
        (line,) = running.log_lines()
        assert line["error"] == "gateway_stopped"
        assert running.metric("in_flight", model=MODEL, key="") == 0


def await_refusal(port: int) -> None:
    """Connect until nothing listens there any more."""
    while True:
        try:
            Connection(port).close()
        except OSError:
            return
