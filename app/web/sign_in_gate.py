"""Require sign-in: an ASGI layer around Streamlit, where the studio is shared.

It comes before Streamlit's own pages, since a page is drawn over a WebSocket that tells anybody who opens it paths of
this machine and lets them clear caches. The flow is that of `st.login`: its routes, its cookies, its check of the
token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from itsdangerous import URLSafeTimedSerializer
from starlette.requests import cookie_parser
from streamlit.auth_util import get_cookie_with_chunks
from streamlit.user_info import generate_login_redirect_url
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from app.web.origin_guard import Message, Receive, Send
from app.web.upload_limits import ACTOR
from backend.service.studio.sign_in import CALLBACK, SignIn

LOGOUT = "/auth/logout"
OPEN = ("/_stcore/health", "/auth/login", LOGOUT, CALLBACK)
"""Paths of Streamlit that answer without sign-in: health, and the way in and out."""
START, NEXT = "/sign-in", "whetstone_next"
LONGEST = 2000
"""Characters of an address to return to after sign-in."""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Whetstone</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex"><style>
:root {{ color-scheme: light dark; --text: #14171a; --page: #fff; --accent: #0b6e99 }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e6e9ec; --page: #12161a; --accent: #1a79a8 }} }}
body {{ margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif }}
main {{ max-width: 26rem; padding: 1.5rem }} h1 {{ font-size: 1.75rem; margin: 0 0 .5rem }} p {{ margin: 0 0 1.5rem }}
a {{ display: inline-block; padding: .6rem 1.2rem; border-radius: .5rem; background: var(--accent); color: #fff;
  text-decoration: none; font-weight: 600 }} a:focus-visible {{ outline: 3px solid var(--text); outline-offset: 2px }}
</style></head><body><main><h1>Whetstone</h1><p>{sentence}</p><a href="{target}">{label}</a></main></body></html>"""


class Session(NamedTuple):
    """One sign-in: the provider's claims, a key that no other sign-in has, and when it ends (Unix time)."""

    claims: dict[str, Any]
    key: str
    ends: float


class Gate:
    """The layer. `cookie_secret`: what Streamlit signs its cookies with."""

    def __init__(
        self, app: Callable[[Message, Receive, Send], Awaitable[None]], sign_in: SignIn, cookie_secret: str
    ) -> None:
        self._app, self._sign_in, self._secret = app, sign_in, cookie_secret
        self._signed_out: dict[str, float] = {}
        self._pages: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        # 1. Who asks, and signing out.
        cookies = _cookies(scope) if scope["type"] in {"http", "websocket"} else {}
        session = self.session(cookies)
        if scope["type"] == "http" and scope["path"] == LOGOUT and session is not None:
            self._sign_out(session)
        # 2. Paths that need no sign-in.
        if scope["type"] not in {"http", "websocket"} or scope["path"] in OPEN:
            await self._app(scope, receive, _marked_secure(send, https=self._sign_in.origin.startswith("https:")))
            return
        # 3. Let in, refuse, or lead to the sign-in.
        claims = session.claims if session is not None else None
        if session is not None and self._sign_in.actor(session.claims).role is not None:
            await self._let_in(scope, receive, send, cookies, session)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif claims is not None:
            who = escape(self._sign_in.actor(claims).name)
            sentence = f"You are signed in as {who}, who has no role in this studio. Ask one of its admins for one."
            await _answer(send, 403, PAGE.format(sentence=sentence, target="/auth/logout", label="Sign out"))
        elif scope["path"] == START:
            await self._start(scope, send)
        else:
            target = f"{START}?next={quote(_requested_path(scope), safe='')}" if scope["method"] == "GET" else START
            await _answer(
                send, 401, PAGE.format(sentence="Sign in to use this studio.", target=escape(target), label="Sign in")
            )

    def session(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the sign-in if it is recent enough and not ended; None for a stranger."""
        # 1. Read Streamlit's signed cookie.
        days = self._sign_in.sign_in_hours / 24

        def read_cookie(name: str) -> bytes | None:
            written = cookies.get(name, "").encode("latin-1", "replace")
            value: bytes | None = decode_signed_value(self._secret, name, written, max_age_days=days)
            return value

        signed = get_cookie_with_chunks(read_cookie, USER_COOKIE_NAME)
        claims = json.loads(signed) if signed else {}
        # 2. Check it.
        if not signed or claims.get("is_logged_in") is not True or claims.get("origin") != self._sign_in.origin:
            return None
        # 3. Date it and look up whether it was ended.
        reader = URLSafeTimedSerializer(self._secret, salt=USER_COOKIE_NAME)
        signed_at = reader.loads(cookies[USER_COOKIE_NAME], return_timestamp=True)[1].timestamp()
        key = hashlib.sha256(f"{signed_at} ".encode() + signed).hexdigest()
        return None if key in self._signed_out else Session(claims, key, signed_at + self._sign_in.sign_in_hours * 3600)

    def _sign_out(self, session: Session) -> None:
        """End this sign-in: its cookie opens nothing any more, and every page that it opened is disconnected."""
        now = time.time()
        self._signed_out = {key: ends for key, ends in self._signed_out.items() if ends > now} | {
            session.key: session.ends
        }
        for page in self._pages.pop(session.key, set()):
            page.set()

    async def _let_in(
        self, scope: Message, receive: Receive, send: Send, cookies: Mapping[str, str], session: Session
    ) -> None:
        """Pass the request on to Streamlit; after signing in, redirect to the requested page. A WebSocket ends with the
        sign-in."""
        # 1. After signing in, redirect to the requested page.
        target = cookies.get(NEXT, "")
        if scope["type"] == "http" and scope["path"] in {"/", START} and (target or scope["path"] == START):
            await _redirect(send, _local_path(unquote(target)), f"{NEXT}=; Path=/; Max-Age=0")
            return
        scope = {**scope, ACTOR: self._sign_in.actor(session.claims)}
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        # 2. A WebSocket ends with the sign-in.
        ended = asyncio.Event()
        self._pages[session.key].add(ended)
        try:
            await self._app(scope, _receive_until(receive, ended, session.ends), send)
        finally:
            self._pages[session.key].discard(ended)
            if not self._pages[session.key]:
                del self._pages[session.key]

    async def _start(self, scope: Message, send: Send) -> None:
        """Redirect to the provider, and store the requested page in a cookie."""
        target = parse_qs(scope["query_string"].decode("latin-1")).get("next", ["/"])[0]
        cookie = f"{NEXT}={quote(_local_path(target), safe='/')}; Path=/; Max-Age=600; HttpOnly; SameSite=Lax"
        await _redirect(send, generate_login_redirect_url("default"), cookie)


def _receive_until(receive: Receive, ended: asyncio.Event, ends: float) -> Receive:
    """Return the page's messages until the sign-in ends; then disconnect it and answer no later message."""

    async def receiving() -> Message:
        # Wait for a message, the sign-out or the end of the sign-in, whichever is first.
        message, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())
        try:
            left = max(0.0, ends - time.time())
            await asyncio.wait({message, ending}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if message.done() and not ended.is_set() and time.time() < ends:
                return message.result()
            return {"type": "websocket.disconnect", "code": 1008}
        finally:
            message.cancel()
            ending.cancel()

    return receiving


def _cookies(scope: Message) -> dict[str, str]:
    sent = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"cookie"]
    return cookie_parser("; ".join(sent))


def _requested_path(scope: Message) -> str:
    query = scope["query_string"].decode("latin-1")
    return quote(scope["path"]) + (f"?{query}" if query else "")


def _local_path(address: str) -> str:
    """Return the path if it is in this studio, else its first page."""
    fine = (
        address.startswith("/")
        and not address.startswith(("//", "/\\"))
        and address.isprintable()
        and len(address) <= LONGEST
    )
    return address if fine else "/"


def _marked_secure(send: Send, *, https: bool) -> Send:
    """Add `Secure` to cookies over https: Streamlit leaves it out, for Safari on http://localhost (1.67)."""

    async def sending(message: Message) -> None:
        if https and message["type"] == "http.response.start":
            secure = [(n, v + b"; Secure" if n.lower() == b"set-cookie" else v) for n, v in message.get("headers", ())]
            message = {**message, "headers": secure}
        await send(message)

    return sending


async def _redirect(send: Send, target: str, cookie: str) -> None:
    headers = [(b"location", quote(target, safe="/?&=%:+,~@").encode()), (b"set-cookie", cookie.encode())]
    await send({"type": "http.response.start", "status": 302, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, page: str) -> None:
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": page.encode()})
