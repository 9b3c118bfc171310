"""Which requests the web server answers, without a server: names, origins, and the policies on every answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.web.origin_guard import POLICIES, Guard
from backend import settings
from backend.domain.errors import RequestError
from backend.service.studio import studio
from tests.event_loop import run_in_own_loop
from tests.homes import open_home

HOSTS = ["studio.example.org", "https://proxied.example.org:8443", "HTTP://Plain.example.org:80"]


def responses(kind: str = "http", **headers: str) -> list[dict[str, Any]]:
    """What is sent back; the application inside answers 200 with a policy of its own."""
    sent: list[dict[str, Any]] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"X-Frame-Options", b"ALLOWALL"), (b"etag", b"1")],
        }
        await send(start if scope["type"] == "http" else {"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    guarded = Guard(inner, HOSTS)
    run_in_own_loop(lambda: guarded(scope, None, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8501", None),
        ("127.0.0.1:8501", None),
        ("[::1]:8501", None),
        ("LOCALHOST", None),
        ("localhost:8501", "http://localhost:8501"),
        ("studio.example.org", "https://studio.example.org"),
        ("127.0.0.1:8501", "https://studio.example.org"),
        ("studio.example.org:8501", "http://studio.example.org:8501"),
        ("localhost", "http://localhost"),
        ("proxied.example.org", "https://proxied.example.org:8443"),
        ("proxied.example.org:8443", "https://proxied.example.org:8443"),
        ("127.0.0.1:8501", "http://plain.example.org"),
    ],
)
def test_what_is_meant_is_answered(host: str, origin: str | None) -> None:
    headers = {"host": host} | ({"origin": origin} if origin else {})
    (answer,) = responses(**headers)
    assert answer["status"] == 200 and dict(answer["headers"]) == {b"etag": b"1", **POLICIES}
    assert responses("websocket", **headers)[0]["type"] == "websocket.accept"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.example:8501", None),
        ("127.0.0.1.evil.example", None),
        ("localhost@evil.example", None),
        ("", None),
        ("0.0.0.0:8501", None),
        ("localhost:8501", "http://evil.example"),
        ("localhost:8501", "null"),
        ("localhost:8501", "http://localhost:3000"),
        ("localhost:8501", "http://localhost:8501.evil.example"),
        ("localhost:8501", "http://evil.example/http://localhost:8501"),
        ("localhost:8501", "file://localhost:8501"),
        ("localhost:8501", "http://[::1"),
        ("[::1", None),
        ("localhost", "https://localhost"),
        ("studio.example.org", "https://studio.example.org:9999"),
        ("studio.example.org", "http://studio.example.org"),
        ("127.0.0.1:8501", "https://studio.example.org:8443"),
        ("127.0.0.1:8501", "http://studio.example.org"),
        ("studio.example.org:8501", "http://studio.example.org"),
        ("studio.example.org:8501", "https://studio.example.org:9999"),
        ("proxied.example.org", "https://proxied.example.org"),
        ("plain.example.org", "https://plain.example.org"),
        ("studio.example.org", "https://a@studio.example.org"),
        ("studio.example.org", "https://studio.example.org/"),
    ],
)
def test_what_another_page_sends_is_not(host: str, origin: str | None) -> None:
    headers = {"host": host} | ({"origin": origin} if origin else {})
    start, body = responses(**headers)
    assert (
        start["status"] == 403 and b"WHETSTONE_HOSTS" in body["body"] and set(POLICIES) <= dict(start["headers"]).keys()
    )
    assert responses("websocket", **headers) == [{"type": "websocket.close", "code": 1008}]


def test_without_a_host_nothing_is_answered() -> None:
    assert responses()[0]["status"] == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "studio.example.org"])
def test_another_address_needs_a_word_that_it_is_meant(host: str) -> None:
    with pytest.raises(
        RequestError,
        match=r"Nobody would have to sign in: .*set WHETSTONE_OIDC_METADATA_URL.*ssh -L .*say that it is meant",
    ) as refused:
        studio.check_host(host, without_sign_in=False)
    assert refused.value.named == ("host", "without_sign_in")
    studio.check_host(host, without_sign_in=True)
    for loopback in ("127.0.0.1", "localhost", "::1"):
        studio.check_host(loopback, without_sign_in=False)


@pytest.mark.parametrize(
    ("host", "variables", "shared"),
    [
        ("127.0.0.1", {}, False),
        ("0.0.0.0", {}, True),
        ("127.0.0.1", {"HOSTS": "studio.example.org"}, True),
        ("127.0.0.1", {"HOSTS": "https://studio.example.org:8443"}, True),
        ("127.0.0.1", {"HOSTS": "studio.example.org", "SHARED": "0"}, False),
        ("127.0.0.1", {"HOSTS": "localhost,http://127.0.0.1:8501"}, False),
        ("0.0.0.0", {"HOSTS": "studio.example.org", "SHARED": "0"}, True),
    ],
)
def test_a_studio_is_shared_by_whichever_setting_lets_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, variables: dict[str, str], shared: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"WHETSTONE_{name}", value)
    chosen = settings.load()
    home = open_home(tmp_path / "home", hosts=chosen.hosts, alone=chosen.alone)
    assert studio.is_reached_by_others(home, host) is shared


def test_names_for_others_without_a_sign_in_are_warned_of_at_the_start(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", hosts=("studio.example.org",))
    open_access_warning = studio._open_access_warning(home, "127.0.0.1")
    assert open_access_warning is not None and open_access_warning.startswith(
        "WHETSTONE_HOSTS names studio.example.org, so this studio is treated as shared"
    )
    assert studio._open_access_warning(open_home(tmp_path / "home"), "127.0.0.1") is None
