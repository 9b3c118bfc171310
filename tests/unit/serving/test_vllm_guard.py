"""The layer before vLLM's server: nobody is let in without the key, on whatever path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.vllm_guard.whetstone_guard import Guard
from tests.event_loop import run_in_own_loop

KEY = "the-key"
PATHS = [
    "/v1/models",
    "/v1/completions",
    "/invocations",
    "/tokenize",
    "/metrics",
    "/score",
    "/inference/v1/generate",
    "/health/x",
    "/",
]


def status_of(path: str, headers: list[tuple[bytes, bytes]], kind: str = "http", method: str = "POST") -> Any:
    """The status that comes back, or what a WebSocket is told; 200 is the application's own."""
    sent: list[dict[str, Any]] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200} if kind == "http" else {"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": kind, "path": path, "headers": headers} | ({"method": method} if kind == "http" else {})
    run_in_own_loop(lambda: Guard(inner)(scope, None, send))  # type: ignore[arg-type]
    return sent[0].get("status", sent[0]["type"])


@pytest.fixture(autouse=True)
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_wants_the_key(path: str) -> None:
    assert status_of(path, []) == 401 and status_of(path, [(b"authorization", b"Bearer another")]) == 401
    assert status_of(path, [(b"Authorization", b"bearer the-key")]) == 200
    assert status_of(path, [(b"authorization", b"Bearer the-key"), (b"authorization", b"Bearer another")]) == 401
    assert status_of(path, [], "websocket") == "websocket.close"
    assert status_of(path, [(b"authorization", b"Bearer the-key")], "websocket") == "websocket.accept"


def test_health_and_what_a_browser_asks_before_are_answered() -> None:
    assert status_of("/health", []) == 200 and status_of("/v1/models", [], method="OPTIONS") == 200


@given(st.binary(max_size=40))
def test_no_other_value_is_the_key(value: bytes) -> None:
    required = (
        200 if value.partition(b" ")[0].lower() == b"bearer" and value.partition(b" ")[2] == KEY.encode() else 401
    )
    assert status_of("/v1/models", [(b"authorization", value)]) == required


def test_without_a_key_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(RuntimeError, match="VLLM_API_KEY is not set"):
        status_of("/v1/models", [])
