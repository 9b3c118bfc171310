"""Who is let in: what signs in a person, whom the claims make, what is refused before the studio starts."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from app.web.sign_in_gate import Gate
from backend.domain.errors import RequestError
from backend.domain.roles import Actor, Role
from backend.service.studio import sign_in, studio
from backend.service.studio.sign_in import SignIn
from backend.settings import Settings
from tests.event_loop import run_in_own_loop

SECRET, ORIGIN = "s" * 40, "https://studio.example.org"
OIDC = {
    "oidc_metadata_url": "https://id.example.org/.well-known/openid-configuration",
    "oidc_client_id": "whetstone",
    "oidc_redirect_uri": f"{ORIGIN}/oauth2callback",
    "oidc_secret_env": "OIDC_SECRET",
}
NOBODY = Actor(name="1", role=None)
SIGN_IN = SignIn.model_validate(OIDC | {"role_claim": "realm_access.roles", "admins": ("Ada@Example.org", "sub-7")})
ANN = {"is_logged_in": True, "origin": ORIGIN, "sub": "ann", "realm_access": {"roles": ["viewer", "x"]}}


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": [(b"set-cookie", b"a=b")]})


def responses(
    path: str = "/",
    claims: Mapping[str, Any] | None = None,
    *,
    secret: str = SECRET,
    cookies: str = "",
    method: str = "GET",
    kind: str = "http",
    query: bytes = b"",
) -> list[dict[str, Any]]:
    """What the gate sends."""
    signed = create_signed_value(secret, "_streamlit_user", json.dumps(claims)).decode() if claims is not None else ""
    header = "; ".join(filter(None, [f"_streamlit_user={signed}" if signed else "", cookies]))
    scope = {
        "type": kind,
        "path": path,
        "method": method,
        "query_string": query,
        "headers": [(b"cookie", header.encode())],
    }
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    run_in_own_loop(lambda: Gate(_inside, SIGN_IN, SECRET)(scope, receive, send))
    return sent


def status(*args: Any, **options: Any) -> int:
    return int(responses(*args, **options)[0]["status"])


def test_who_signed_in_and_has_a_role_gets_in() -> None:
    assert status("/", ANN) == 299 and status("/media/x", ANN) == 299
    assert status("/", ANN | {"realm_access": {}}) == 403


@pytest.mark.parametrize(
    "claims",
    [ANN | {"is_logged_in": False}, ANN | {"is_logged_in": "true"}, ANN | {"origin": "https://other.example.org"}, {}],
)
def test_another_cookie_does_not(claims: dict[str, Any]) -> None:
    assert status("/", claims) == 401
    assert responses("/_stcore/stream", claims, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_nor_one_that_somebody_else_signed_or_that_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status("/", ANN, secret="t" * 40) == 401
    signed = create_signed_value(SECRET, "_streamlit_user", json.dumps(ANN)).decode()
    assert status(cookies=f"_streamlit_user={signed}") == 299
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 12.1 * 3600)
    assert status(cookies=f"_streamlit_user={signed}") == 401


@pytest.mark.parametrize(
    ("required", "target"),
    [
        ("/job?id=j-1&x=a%26b", "/job?id=j-1&x=a%26b"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
        ("/" + "a" * 3000, "/"),
    ],
)
def test_after_signing_in_one_comes_to_where_one_wanted_to_go_in_this_studio(required: str, target: str) -> None:
    started = responses("/sign-in", query=f"next={quote(required, safe='')}".encode())[0]
    headers = dict(started["headers"])
    assert started["status"] == 302 and headers[b"location"].startswith(b"/auth/login?provider=")
    cookie = headers[b"set-cookie"].decode().partition(";")[0]
    back = responses("/", ANN, cookies=cookie)[0]
    assert dict(back["headers"])[b"location"].decode() == target


def test_cookies_of_a_studio_on_https_are_for_https_alone() -> None:
    assert responses("/oauth2callback")[0]["headers"] == [(b"set-cookie", b"a=b; Secure")]


@pytest.mark.parametrize(
    ("claims", "actor"),
    [
        (
            {"sub": "1", "email": "Ada@example.org", "email_verified": True},
            Actor(name="ada@example.org", role=Role.ADMIN),
        ),
        ({"sub": "1", "email": "ada@example.org", "email_verified": False}, NOBODY),
        ({"sub": "1", "email": "ada@example.org"}, NOBODY),
        ({"sub": "sub-7"}, Actor(name="sub-7", role=Role.ADMIN)),
        (
            {"sub": "1", "realm_access": {"roles": ["whetstone-operator", "viewer"]}},
            Actor(name="1", role=Role.OPERATOR),
        ),
        ({"sub": "1", "realm_access.roles": "viewer"}, Actor(name="1", role=Role.VIEWER)),
        ({"sub": "1", "realm_access": ["admin"], "roles": ["admin"]}, NOBODY),
        ({"sub": "1", "email": "ADMIN", "email_verified": ["x"], "realm_access": {"roles": {"admin": 1}}}, NOBODY),
        ({}, Actor(name="", role=None)),
    ],
)
def test_whom_the_claims_make(claims: dict[str, Any], actor: Actor) -> None:
    assert SIGN_IN.actor(claims) == actor.model_copy(update={"origin": "page"})


def settings(tmp_path: Path, **written: str) -> Settings:
    return Settings(home=tmp_path, sign_in=written)


def test_a_file_in_the_home_says_the_same_and_the_environment_counts_more(tmp_path: Path) -> None:
    assert sign_in.read_configuration(settings(tmp_path)) is None
    lines = [f'{name} = "{value}"' for name, value in OIDC.items()] + ['operators = ["ann"]']
    (tmp_path / sign_in.FILE).write_text("\n".join(lines))
    configuration = sign_in.read_configuration(settings(tmp_path, oidc_client_id="other", sign_in_hours="2"))
    assert configuration is not None and (
        configuration.oidc_client_id,
        configuration.operators,
        configuration.sign_in_hours,
    ) == (
        "other",
        ("ann",),
        2.0,
    )
    (tmp_path / sign_in.FILE).write_text("client_secret = 'x'")
    with pytest.raises(RequestError, match="client_secret, which nothing reads"):
        sign_in.read_configuration(settings(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"oidc_client_id": None}, "`oidc_client_id` of the sign-in is missing"),
        ({"oidc_metadata_url": "http://id.example.org/x"}, "METADATA_URL is .*https://"),
        ({"oidc_redirect_uri": "http://studio.lan:8501/oauth2callback"}, "REDIRECT_URI is .*https://"),
        ({"oidc_redirect_uri": f"{ORIGIN}/"}, "must end with /oauth2callback"),
        ({"oidc_secret_file": "x"}, "Name the client's secret once"),
        ({"oidc_secret_env": None}, "Name the client's secret once"),
        ({"sign_in_hours": "soon"}, "`sign_in_hours` of the sign-in is wrong"),
        ({"sign_in_hours": "-1"}, "`sign_in_hours` of the sign-in is wrong"),
    ],
)
def test_what_is_missing_or_wrong_is_said_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    written = {name: value for name, value in (OIDC | changes).items() if value is not None}
    with pytest.raises(RequestError, match=message):
        sign_in.read_configuration(settings(tmp_path, **written))


def test_the_secret_is_read_from_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OIDC_SECRET", "")
    with pytest.raises(RequestError, match="OIDC_SECRET, which should hold the OIDC client's secret"):
        sign_in.read_secret(SIGN_IN)
    monkeypatch.setenv("OIDC_SECRET", " known \n")
    assert sign_in.read_secret(SIGN_IN) == "known"
    of_file = SIGN_IN.model_copy(update={"oidc_secret_env": None, "oidc_secret_file": str(tmp_path / "none")})
    with pytest.raises(RequestError, match="none, which should hold"):
        sign_in.read_secret(of_file)


def test_the_cookie_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    cookie_secret = sign_in.read_cookie_secret(settings(tmp_path))
    assert len(cookie_secret) > 40 and sign_in.read_cookie_secret(settings(tmp_path)) == cookie_secret
    assert stat.S_IMODE((tmp_path / sign_in.COOKIE_SECRET).stat().st_mode) == 0o600


def test_with_a_sign_in_another_address_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path))
    for name, value in OIDC.items():
        monkeypatch.setenv(f"WHETSTONE_{name.upper()}", value)
    with pytest.raises(RequestError, match="should hold the OIDC client's secret"):
        studio.check_host("0.0.0.0", without_sign_in=False)
    monkeypatch.setenv("OIDC_SECRET", "known")
    studio.check_host("0.0.0.0", without_sign_in=False)
    assert studio.allowed_hosts() == ["https://studio.example.org"]


class Page:
    """A WebSocket of a signed-in person: what the application inside hears of it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.sent: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.opened, self.closed = asyncio.Event(), asyncio.Event()

    async def inside(self, scope: Any, receive: Any, send: Any) -> None:
        self.opened.set()
        while not self.heard or self.heard[-1] != "websocket.disconnect":
            self.heard.append((await receive())["type"])
        self.closed.set()


def signed_cookie(claims: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    signed = create_signed_value(SECRET, "_streamlit_user", json.dumps(claims)).decode()
    return [(b"cookie", f"_streamlit_user={signed}".encode())]


def of_page(path: str, cookie: list[tuple[bytes, bytes]], kind: str = "websocket") -> dict[str, Any]:
    return {"type": kind, "path": path, "method": "GET", "query_string": b"", "headers": cookie}


def test_signing_out_ends_the_other_pages_and_the_cookie() -> None:
    async def ignore(message: Any) -> None:
        statuses.append(message.get("status"))

    async def nothing() -> Any:
        return {}

    async def work() -> None:
        page, other = Page(), Page()
        pages = {"/_stcore/stream": page, "/other/stream": other}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "websocket":
                await pages[scope["path"]].inside(scope, receive, send)

        gate, ann, bob = Gate(app, SIGN_IN, SECRET), signed_cookie(ANN), signed_cookie(ANN | {"sub": "bob"})
        running = [
            asyncio.create_task(gate(of_page("/_stcore/stream", ann), page.sent.get, ignore)),
            asyncio.create_task(gate(of_page("/other/stream", bob), other.sent.get, ignore)),
        ]
        await page.opened.wait()
        await other.opened.wait()
        await gate(of_page("/auth/logout", ann, "http"), nothing, ignore)
        await page.closed.wait()
        assert page.heard == ["websocket.disconnect"] and not other.closed.is_set()
        statuses.clear()
        await gate(of_page("/", ann, "http"), nothing, ignore)
        assert statuses[0] == 401, "whoever kept the cookie gets in no more"
        other.sent.put_nowait({"type": "websocket.disconnect"})
        await asyncio.gather(*running)

    statuses: list[Any] = []
    run_in_own_loop(work)


def test_what_a_page_sends_after_its_sign_in_has_ended_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hours count from the sign-in, not from when the page was opened."""

    async def ignore(message: Any) -> None:
        pass

    async def work() -> None:
        page, now, began = Page(), time.time(), time.time
        gate, cookie = Gate(page.inside, SIGN_IN, SECRET), signed_cookie(ANN)
        monkeypatch.setattr(time, "time", lambda: began() + 11 * 3600)
        running = asyncio.create_task(gate(of_page("/_stcore/stream", cookie), page.sent.get, ignore))
        await page.opened.wait()
        page.sent.put_nowait({"type": "websocket.receive"})
        while not page.heard:
            await asyncio.sleep(0)
        monkeypatch.setattr(time, "time", lambda: now + 12.1 * 3600)
        page.sent.put_nowait({"type": "websocket.receive"})
        await running
        assert page.heard == ["websocket.receive", "websocket.disconnect"]

    run_in_own_loop(work)
