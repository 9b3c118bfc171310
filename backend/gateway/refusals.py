"""Errors of the gateway in OpenAI's form: one sentence, a type, a code, and the HTTP status."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from http import HTTPStatus

from backend.domain.errors import WhetstoneError

JSON = b"application/json"
Headers = list[tuple[bytes, bytes]]


class Refusal(WhetstoneError):
    """The gateway cannot answer the request itself: the message says why and what to do next.

    `kind` counts it in the metrics and the log; `code` is what programs read of OpenAI's errors.
    """

    def __init__(
        self,
        status: HTTPStatus,
        sentence: str,
        *,
        kind: str,
        code: str | None = None,
        param: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.kind = status, sentence, kind
        self.code, self.param, self.extra_headers = code or kind, param, tuple(headers)

    def body(self) -> bytes:
        """Return the JSON document of the error."""
        return error_body(self.status, self.sentence, code=self.code, param=self.param)

    def event(self) -> bytes:
        """Return the error as an event of a stream that has begun, which OpenAI's clients raise."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> Headers:
        return json_headers(self.body()) + list(self.extra_headers)


class NoConnection(Refusal):
    """A server takes no connection, so nothing of the request was sent to it."""


def try_later(sentence: str, *, kind: str, after_s: float) -> Refusal:
    """Return a refusal (503) of a request that may be sent again after so many seconds."""
    headers = [(b"retry-after", str(max(1, math.ceil(after_s))).encode())]
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, kind=kind, headers=headers)


def error_body(status: int, sentence: str, *, code: str, param: str | None = None) -> bytes:
    """Return an error document in OpenAI's form."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    return json.dumps({"error": {"message": sentence, "type": kind, "param": param, "code": code}}).encode()


def json_headers(body: bytes) -> Headers:
    """Return the header fields of a JSON answer."""
    return [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
