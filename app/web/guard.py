"""What the web server answers to, and what a browser may do with the answer: an ASGI layer around all of Streamlit's.

A page of another site can make a browser send requests here under a name of its own (DNS rebinding) or from its own address, and
can draw this studio in a frame. Only names and origins that are meant are answered, and every answer carries the policies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICIES = {
    # Vega compiles its expressions, and Streamlit sets styles and scripts of its own in the page
    b"content-security-policy": b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    b"style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' blob: data:; "
    b"media-src 'self' blob: data:; worker-src 'self' blob:; frame-src 'self' blob: data:; object-src 'none'; base-uri 'self'; "
    b"form-action 'self'; frame-ancestors 'none'",
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
REFUSED = b"This studio does not answer under this name or to this page. Its owner lists names in WHETSTONE_HOSTS."


class Guard:
    """`hosts` are names that are answered beside those of loopback, without ports."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], hosts: Iterable[str] = ()) -> None:
        self._app, self._own = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
        elif self.allows(scope["headers"]):
            await self._app(scope, receive, _with_policies(send))
        else:
            await _refuse(scope["type"], send)

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """One Host that is meant; and no Origin, that of this very address, or one of the names that the owner listed."""
        hosts = [value.decode("latin-1").lower() for name, value in headers if name.lower() == b"host"]
        origins = [value.decode("latin-1").lower() for name, value in headers if name.lower() == b"origin"]
        if len(hosts) != 1 or len(origins) > 1 or _name(hosts[0]) not in {*LOOPBACK, *self._own}:
            return False
        return all(_place(origin) == hosts[0] or _name(_place(origin)) in self._own for origin in origins)


def _place(origin: str) -> str:
    """`host:port` of an origin; of `null` nothing."""
    try:
        split = urlsplit(origin)
    except ValueError:
        return ""
    return split.netloc if split.scheme in {"http", "https"} and origin == f"{split.scheme}://{split.netloc}" else ""


def _name(place: str) -> str:
    """Without port and brackets; nothing where it has a user or is no place."""
    try:
        return (urlsplit(f"//{place}").hostname or "") if "@" not in place and "/" not in place else ""
    except ValueError:
        return ""


def _with_policies(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in POLICIES]
            message = {**message, "headers": [*kept, *POLICIES.items()]}
        await send(message)

    return sending


async def _refuse(kind: str, send: Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *POLICIES.items()]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})
