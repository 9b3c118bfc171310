"""Passes a request on to the server of its model, and the answer back as it comes.

An ASGI application: the bytes of a stream go from socket to socket, chunk by chunk, and nothing parses them on the way.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from backend.gateway.admission import identify
from backend.gateway.answer_ends import AnswerEnds
from backend.gateway.exchange import Exchange
from backend.gateway.gateway import Gateway
from backend.gateway.refusals import Headers, NoConnection, Refusal
from backend.gateway.request_log import CONTENT_BYTES
from backend.gateway.routes import Upstream

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PASSED_ON = frozenset((b"accept", b"content-type", b"user-agent", b"x-request-id", b"traceparent", b"tracestate"))
"""Header fields of a request that reach the server. All others are between the client and the gateway."""
NOT_PASSED_BACK = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"trailer", b"transfer-encoding")
    + (b"upgrade", b"date", b"server")
)
"""Header fields of an answer that are of its connection only, or that the gateway writes itself."""
EVENT_STREAM = "text/event-stream"
LARGE_BODY = 2**20
"""aiohttp warns of larger bodies that are sent as bytes."""


class ClientLeft(Exception):
    """The client closed its connection before the answer ended."""


class ClientStalled(Exception):
    """The client reads no more of its answer."""


class ModelRequest(NamedTuple):
    """A request's body, and the model that it names."""

    model: str
    body: bytes

    def body_for(self, upstream: Upstream) -> bytes:
        """Return the body with the server's own name of the model; as it came where that is the same."""
        if self.model == upstream.served_name:
            return self.body
        return json.dumps({**json.loads(self.body), "model": upstream.served_name}).encode()


class PassedRoute:
    """One path of the API, for all models."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway, self._path = gateway, path

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        gateway, exchange = self._gateway, Exchange(self._path)
        answer = _Answer(send, exchange, gateway.options.unread_s, with_content=gateway.options.log_content)
        gateway.in_flight += 1
        try:
            await self._exchange(scope, receive, exchange, answer)
        except Refusal as refusal:
            exchange.error = refusal.kind
            await answer.refuse(refusal)
        except ClientLeft:
            exchange.error = "client_left"
        except ClientStalled:
            exchange.error = "client_stalled"
        except asyncio.CancelledError:
            # The gateway stops, and the time for requests under way is over.
            exchange.error = "gateway_stopped"
            await answer.refuse(_stopped())
            raise
        finally:
            gateway.in_flight -= 1
            if exchange.status is None and exchange.error is None:
                exchange.error = "gateway_failed"  # a defect, which uvicorn logs
            exchange.usage = answer.ends.usage()
            gateway.record(exchange)

    async def _exchange(self, scope: Message, receive: Receive, exchange: Exchange, answer: _Answer) -> None:
        """Admit the request, read it and pass it on. Raises Refusal, ClientLeft, ClientStalled."""
        # 1. The key and its limit, before anything is read.
        gateway, headers = self._gateway, scope["headers"]
        exchange.key = identify(gateway.keys, headers)
        gateway.keys.take(exchange.key, exchange.began)
        # 2. The body.
        request = await self._read_request(headers, receive, exchange)
        # 3. Pass it on, until the answer ends or the client leaves.
        await _until_left(receive, answer, self._send_on(headers, request, exchange, answer))

    async def _send_on(self, headers: Headers, request: ModelRequest, exchange: Exchange, answer: _Answer) -> None:
        """Pass the request on to the server of its model. Where that took no connection, so that nothing was sent, and
        is to be there again soon, wait for it. Raises Refusal."""
        gateway = self._gateway
        while True:
            async with gateway.lend_upstream(request.model) as upstream:
                exchange.model, exchange.job = upstream.name, upstream.job
                gateway.metrics.begin(exchange)
                try:
                    await self._pass_on(headers, request.body_for(upstream), upstream, answer)
                    return
                except NoConnection as refusal:
                    no_connection = refusal
                finally:
                    gateway.metrics.end(exchange)
            await gateway.wait_for(upstream, no_connection, exchange.elapsed())

    async def _read_request(self, headers: Headers, receive: Receive, exchange: Exchange) -> ModelRequest:
        """Return the request. Raises Refusal, ClientLeft."""
        options = self._gateway.options
        body = await _read_body(headers, receive, options.most_body_bytes, options.body_s)
        if options.log_content:
            exchange.request_body = body[:CONTENT_BYTES]
        return parse_request(body)

    async def _pass_on(self, headers: Headers, body: bytes, upstream: Upstream, answer: _Answer) -> None:
        """Send the request to its server and pass the answer back. Raises Refusal."""
        try:
            async with self._gateway.session.post(
                URL(f"{upstream.base}{self._path}", encoded=True),
                data=body if len(body) <= LARGE_BODY else io.BytesIO(body),
                headers=_upstream_headers(headers, upstream.key),
                allow_redirects=False,
            ) as response:
                if response.status == HTTPStatus.UNAUTHORIZED:
                    raise _failed(upstream, "refused the gateway's key", kind="upstream_refused")
                await answer.start(response)
                read_chunk = response.content.readchunk
                while True:
                    chunk, at_chunk_end = await read_chunk()
                    if chunk:
                        await answer.pass_chunk(chunk)
                    elif not at_chunk_end:
                        break
        except aiohttp.ServerTimeoutError:
            raise _stalled(upstream, self._gateway.options.stall_s) from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or "no connection"
            raise _no_connection(upstream, reason) from None
        except (aiohttp.ClientError, OSError):
            raise _failed(upstream, "closed the connection before its answer ended", kind="upstream_died") from None
        await answer.finish()


class _Answer:
    """The answer to a client while it is sent: its head, its chunks, its end."""

    def __init__(self, send: Send, exchange: Exchange, unread_s: float, *, with_content: bool) -> None:
        self._send, self._exchange, self._with_content = send, exchange, with_content
        self._unread_s = unread_s
        self._is_stream = False
        self.ends = AnswerEnds()
        self.ended = False

    async def start(self, response: aiohttp.ClientResponse) -> None:
        """Send the head of a server's answer."""
        exchange = self._exchange
        self._is_stream = response.content_type == EVENT_STREAM
        exchange.status = response.status
        if response.status >= HTTPStatus.BAD_REQUEST:
            exchange.error = f"http_{response.status}"
        headers = [
            (name, value)
            for name, value in ((name.lower(), value) for name, value in response.raw_headers)
            if name not in NOT_PASSED_BACK
        ]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def pass_chunk(self, chunk: bytes) -> None:
        """Send bytes at once, as one chunk; that waits while the client reads nothing. Raises ClientStalled."""
        try:
            async with asyncio.timeout(self._unread_s):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            self.ended = True
            raise ClientStalled from None
        if self._is_stream and not self.ends.size:
            self._exchange.ttft_s = self._exchange.elapsed()
        self.ends.add(chunk)
        if self._with_content:
            self._exchange.answer += chunk[: max(0, CONTENT_BYTES - len(self._exchange.answer))]

    async def finish(self) -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, refusal: Refusal) -> None:
        """Send the error: as the answer where none has begun, else as the last event of a stream, whose connection is
        then closed without its end, so that no client takes what came for a whole answer."""
        if self.ended:
            return
        self.ended = True
        if self._exchange.status is None:
            self._exchange.status = refusal.status
            await self._send({"type": "http.response.start", "status": refusal.status, "headers": refusal.headers()})
            await self._send({"type": "http.response.body", "body": refusal.body(), "more_body": False})
        elif self._is_stream and self.ends.at_event_end:
            await self._send({"type": "http.response.body", "body": refusal.event(), "more_body": True})


async def _until_left(receive: Receive, answer: _Answer, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it when the client leaves before the answer ended. Raises ClientLeft."""
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    def cancel_work(leaving: asyncio.Future[Message]) -> None:
        nonlocal has_left
        if not answer.ended and not leaving.cancelled() and leaving.result()["type"] == "http.disconnect":
            has_left = True
            task.cancel()

    leaving = asyncio.ensure_future(receive())
    leaving.add_done_callback(cancel_work)
    try:
        await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        answer.ended = True
        raise ClientLeft from None
    finally:
        leaving.cancel()


async def _read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, most: int, body_s: float) -> bytes:
    """Return a request's body. Raises Refusal (413, 408), ClientLeft."""
    # 1. Refuse by the length that it says, before any of it is read.
    stated = next((value for name, value in headers if name == b"content-length"), b"0")
    if stated.isdigit() and int(stated) > most:
        raise _too_large(most)
    # 2. Read until its end.
    parts, size = list[bytes](), 0
    while True:
        try:
            async with asyncio.timeout(body_s):
                message = await receive()
        except TimeoutError:
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The body of the request did not come within {body_s:g} s: send it again.",
                kind="slow_body",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not message.get("more_body"):
            return b"".join(parts)


def parse_request(body: bytes) -> ModelRequest:
    """Return the request in a body. Raises Refusal (400) where it is no JSON object or names no model."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise _malformed("The body of the request is not JSON: send a JSON object.") from None
    if not isinstance(document, dict):
        raise _malformed("The body of the request is not a JSON object: send one with `model`.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _malformed("The request names no model: give `model`, one of those that /v1/models lists.", "model")
    return ModelRequest(model, body)


def _upstream_headers(headers: Iterable[tuple[bytes, bytes]], key: str | None) -> list[tuple[str, str]]:
    """Return the header fields for the server: a few of the client's, and the server's own key."""
    fields = [(name.decode("ascii"), value.decode("latin-1")) for name, value in headers if name in PASSED_ON]
    return fields if key is None else [*fields, ("authorization", f"Bearer {key}")]


def _malformed(sentence: str, param: str | None = None) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, sentence, kind="malformed", code="invalid_request", param=param)


def _too_large(most: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body of the request has more than {most:,} bytes: send a smaller one.",
        kind="too_large",
        code="request_too_large",
    )


def _failed(upstream: Upstream, problem: str, *, kind: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_GATEWAY, _failed_sentence(upstream, problem), kind=kind)


def _no_connection(upstream: Upstream, reason: str) -> NoConnection:
    sentence = _failed_sentence(upstream, f"does not accept connections ({reason})")
    return NoConnection(HTTPStatus.BAD_GATEWAY, sentence, kind="upstream_unreachable")


def _failed_sentence(upstream: Upstream, problem: str) -> str:
    return f"The server of {upstream.name} {problem}: see the log of job {upstream.job or 'that serves it'}."


def _stalled(upstream: Upstream, stall_s: float) -> Refusal:
    return Refusal(
        HTTPStatus.GATEWAY_TIMEOUT,
        f"The server of {upstream.name} sent no byte for {stall_s:g} s: try again, or ask for a shorter answer.",
        kind="upstream_stalled",
    )


def _stopped() -> Refusal:
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The gateway stops and this answer took too long: try again when it has started.",
        kind="gateway_stopped",
    )
