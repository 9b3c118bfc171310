"""An ASGI layer that makes vLLM's server require its key; vLLM loads it by `--middleware whetstone_guard.Guard`.

vLLM's own check of VLLM_API_KEY is for paths that begin with /v1, /v2, /inference and /cohere
(entrypoints/serve/middleware/authenticate.py of 0.32); /invocations, which answers prompts as well, /tokenize, /score
and others stay open. Here every path except /health requires it. Standard library only, since it runs in the server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
OPEN = ("/health",)
REFUSED = b'{"error": {"message": "This server needs its key as a bearer token.", "type": "Unauthorized", "code": 401}}'


class Guard:
    """Checks the key, which is VLLM_API_KEY of the environment.

    Raises RuntimeError if that is not set, so that nothing is served without a key.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        key = os.environ.get("VLLM_API_KEY")
        if not key:
            raise RuntimeError("VLLM_API_KEY is not set, so nobody could be told from anybody else")
        self._app, self._key = app, _digest(key.encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in {"http", "websocket"}
        if (
            not is_request
            or scope.get("method") == "OPTIONS"
            or scope["path"] in OPEN
            or self._has_key(scope["headers"])
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})

    def _has_key(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Tell whether the request has the key. Digests are compared, so that the time taken reveals nothing of it."""
        values = [value for name, value in headers if name.lower() == b"authorization"]
        kind, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(_digest(token), self._key)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
