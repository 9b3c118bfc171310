"""Refuse foreign hosts and origins, and set browser policies: an ASGI layer around Streamlit.

A page of another site can make a browser send requests here under a name of its own (DNS rebinding) or from its own
address, and can draw this studio in a frame. Only listed names and origins are answered, and every answer carries the
policies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICIES = {
    # Vega compiles its expressions, and Streamlit sets styles and scripts of its own in the page
    b"content-security-policy": b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    b"style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    b"connect-src 'self' blob: data:; media-src 'self' blob: data:; worker-src 'self' blob:; "
    b"frame-src 'self' blob: data:; object-src 'none'; base-uri 'self'; "
    b"form-action 'self'; frame-ancestors 'none'",
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
REFUSED = (
    b"This studio does not answer under this name or to this page. "
    b"Its owner lists names in WHETSTONE_HOSTS, or whole origins such as https://studio.example.org:8443."
)
PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """The origin of a page: all three count, since each port of a machine may be another program's."""

    scheme: str
    name: str
    port: int


class Guard:
    """The layer. `hosts` are answered besides loopback: names, whose pages come by https at its own port, or whole
    origins."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], hosts: Iterable[str] = ()) -> None:
        listed = [_origin(host if "://" in host else f"https://{host}") for host in map(str.lower, hosts)]
        self._app, self._origins = app, {origin for origin in listed if origin is not None}
        self._names = {origin.name for origin in self._origins}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
        elif self.allows(scope["headers"], secure=scope.get("scheme") in {"https", "wss"}):
            await self._app(scope, receive, _with_policies(send))
        else:
            await _refuse(scope["type"], send)

    def allows(self, headers: Iterable[tuple[bytes, bytes]], *, secure: bool = False) -> bool:
        """Tell whether a request has one known Host and no foreign Origin. `secure`: it came by TLS."""
        hosts = [value.decode("latin-1").lower() for name, value in headers if name.lower() == b"host"]
        origins = [value.decode("latin-1").lower() for name, value in headers if name.lower() == b"origin"]
        if len(hosts) != 1 or len(origins) > 1:
            return False
        own = _origin(f"{'https' if secure else 'http'}://{hosts[0]}")
        if own is None or own.name not in {*LOOPBACK, *self._names}:
            return False
        allowed = self._origins | self._of_address(own, named=urlsplit(f"//{hosts[0]}").port is not None)
        return all(_origin(origin) in allowed for origin in origins)

    def _of_address(self, own: Origin, *, named: bool) -> set[Origin]:
        """Return the origins of the requested address.

        One port is one server's, whichever scheme the browser sees; without a port a listed name may be that of a proxy
        with TLS, and then a plain page of that name is another one.
        """
        if named:
            return {own._replace(scheme=scheme) for scheme in PORTS}
        return {own} if own.name in LOOPBACK else set()


def _origin(written: str) -> Origin | None:
    """Return the origin; None for `null` and for what is no whole origin (a user, a path or an unknown scheme)."""
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError:
        return None
    if (
        parts.scheme not in PORTS
        or not parts.hostname
        or "@" in parts.netloc
        or written != f"{parts.scheme}://{parts.netloc}"
    ):
        return None
    return Origin(parts.scheme, parts.hostname, PORTS[parts.scheme] if port is None else port)


def _with_policies(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in POLICIES]
            message = {**message, "headers": [*headers, *POLICIES.items()]}
        await send(message)

    return sending


async def _refuse(kind: str, send: Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *POLICIES.items()]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})
