"""One stream of requests: one connection, one request at a time, a time stamp for every socket read.

During the run it only stores and counts bytes; `parse` reads them afterwards. Knows nothing of levels beyond the
`Source` that gives it requests.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from time import perf_counter
from typing import Protocol, cast

from backend.endpoint import reason
from backend.evaluate.load.framing import Framing, Head, Malformed
from backend.evaluate.load.payload import Conversation

PAUSE_S = 0.05
"""Pause after a failed request, so that a dead server is not hammered in a tight loop. Not part of any latency."""
LONGEST_PAUSE_S = 10.0
"""Longest pause that a server may ask for by Retry-After (RFC 9110, section 10.2.3)."""
QUIET_S = 1.0
"""Seconds of silence after which an answer under way is checked: it may be complete although the response goes on."""
LINGER_S = 0.25
"""Seconds from the end mark to the end of the response. A server that takes longer leaves its connections open."""
MOST_LINGERING = 2
"""Answers in a row that lasted longer than that; from then on the end mark is the end, without waiting."""
FAILED_BYTES = 4096
"""Bytes stored of an answer that was too large."""


@dataclass(slots=True)
class Exchange:
    """One request and all that came back. `status` is None while under way, `done` when the response is complete."""

    index: int
    stream: int
    prompt: int
    seed: int | None
    warm: bool
    intended: float
    due: bool = False
    """True if it is sent by the clock, so that its latencies count from `intended`."""
    conversation: Conversation | None = None
    turn: int | None = None
    slice: int = 0
    streamed: bool = True
    sent: float | None = None
    end: float | None = None
    status: str | None = None
    error: str | None = None
    http_status: int | None = None
    most_bytes: int = 2**62
    """Most bytes that the answer may have."""
    size: int = 0
    """Bytes received so far."""
    times: list[float] = field(default_factory=list)
    reads: list[bytes] = field(default_factory=list)


class Source(Protocol):
    """The part of a level that a stream uses."""

    timeout_s: float

    def next(self, stream: int) -> Exchange | None: ...

    def request(self, exchange: Exchange) -> bytes: ...

    def ended(self, exchange: Exchange) -> bool:
        """Return True if the stream may send its next request; otherwise the source calls `send_next` later."""
        ...

    def idle(self, stream: int) -> bool:
        """Note that the stream has nothing to send; return True if its connection is needed later."""
        ...

    def is_over(self, exchange: Exchange, *, late: bool) -> bool:
        """Tell whether the answer is complete although the response goes on; `late`: its time is up."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """An address that is already resolved."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None


class Connection(asyncio.Protocol):
    """A connection of a stream; once the stream has released it, everything received is ignored."""

    __slots__ = ("owner", "transport")

    def __init__(self, owner: Stream) -> None:
        self.owner: Stream | None = owner
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of asyncio's
        if self.owner is None:
            self.transport.abort()
        else:
            self.owner.on_connected(self)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        if self.owner is not None:
            self.owner.on_data(data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        now = perf_counter()
        if self.owner is not None:
            self.owner.on_lost(exc, now)

    def release(self) -> None:
        self.owner = None
        if self.transport is not None:
            self.transport.abort()


class Stream:
    """Sends requests until its source has no more. Never raises: a failure becomes the exchange's status."""

    def __init__(self, number: int, source: Source, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        # Who asks for the next request, and where it is sent.
        self.number = number
        self.reconnects = -1
        self._source = source
        self._peer = peer
        self._loop = loop
        # The connection and the request under way.
        self._connection: Connection | None = None
        self._exchange: Exchange | None = None
        self._framing = Framing()
        self._fresh = True
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._end_mark_time: float | None = None
        """When the end mark came, if the response went on after it."""
        self._lingered = 0
        """Answers in a row whose response did not end after the end mark."""
        self._connecting: asyncio.Task[None] | None = None

    def send_next(self) -> None:
        """Send the next request, or stop until there is one."""
        exchange = self._exchange = self._source.next(self.number)
        if exchange is None:
            if not self._source.idle(self.number):
                self._drop()
            return
        self._deadline = perf_counter() + self._source.timeout_s
        self._timer = self._loop.call_later(min(QUIET_S, self._source.timeout_s), self._check_progress)
        if self._connection is None:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._send(self._connection)

    def abandon(self) -> None:
        """Stop at once, even during a request."""
        self._exchange = None
        self._disarm()
        self._drop()

    async def _connect(self) -> None:
        peer, connection = self._peer, Connection(self)
        self._connection = connection
        # Connect, with TLS if the address says so; what fails becomes the status of the request.
        try:
            await self._loop.create_connection(
                lambda: connection,
                peer.host,
                peer.port,
                ssl=peer.tls,
                server_hostname=peer.server_name if peer.tls else None,
            )
        except ConnectionRefusedError as error:
            self._fail("refused", reason(error))
        except ssl.SSLError as error:
            self._fail("tls", reason(error))
        except OSError as error:
            self._fail("unreachable", reason(error))

    def on_connected(self, connection: Connection) -> None:
        self.reconnects += 1
        self._connecting = None
        self._fresh = True
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        exchange, transport = self._exchange, connection.transport
        assert exchange is not None and transport is not None
        self._framing = Framing()
        data = self._source.request(exchange)
        exchange.sent = perf_counter()
        transport.write(data)

    def on_data(self, data: bytes, now: float) -> None:
        exchange = self._exchange
        if exchange is None:
            self._drop()
            return

        # 1. Store the bytes with their time.
        exchange.times.append(now)
        exchange.reads.append(data)
        exchange.size += len(data)

        # 2. Find out whether the response is complete.
        try:
            complete = self._framing.feed(data)
        except Malformed as error:
            self._fail("malformed", str(error), now)
            return

        # 3. Complete the exchange, wait for its end, or refuse an answer that is too large.
        if complete:
            self._lingered = 0
            self._complete(now)
        elif self._framing.marked:
            self._await_end(now)
        elif exchange.size > exchange.most_bytes:
            self._refuse(exchange, now)

    def _await_end(self, now: float) -> None:
        """Wait for the response to end after its end mark. Most servers end it at once; some leave it open for good."""
        if self._lingered >= MOST_LINGERING:
            self._end_answer(now)
            return
        self._framing.marked, self._end_mark_time = False, now
        self._disarm()
        self._timer = self._loop.call_later(max(0.0, min(LINGER_S, self._deadline - now)), self._check_progress)

    def _check_progress(self) -> None:
        """End the request if its time is up, or if its answer is complete although the response goes on."""
        # See whether the time is up, and since when nothing has come.
        exchange = self._exchange
        assert exchange is not None
        now = perf_counter()
        late = now >= self._deadline
        last = exchange.times[-1] if exchange.times else now
        # End what is complete, fail what is late, and look again at the rest.
        if last == self._end_mark_time:
            self._lingered += 1
            self._end_answer(last)
        elif exchange.times and (late or now - last >= QUIET_S) and self._source.is_over(exchange, late=late):
            self._end_answer(last)
        elif late:
            self._fail("timeout", f"no complete answer within {self._source.timeout_s:g} s")
        else:
            silent_until = last + QUIET_S
            next_check = min(silent_until if silent_until > now else now + QUIET_S, self._deadline)
            self._timer = self._loop.call_later(max(0.0, next_check - now), self._check_progress)

    def _end_answer(self, now: float) -> None:
        """Complete the exchange; its connection cannot be used again, since the response goes on."""
        self._framing.keep_alive = False
        self._complete(now)

    def _refuse(self, exchange: Exchange, now: float) -> None:
        """Fail an answer that would fill the memory, and store only its beginning."""
        message = f"the answer has more than {exchange.most_bytes // 2**20} MiB"
        del exchange.reads[1:], exchange.times[1:]
        exchange.reads[0] = exchange.reads[0][:FAILED_BYTES]
        exchange.size = len(exchange.reads[0])
        self._fail("too_large", message, now)

    def on_lost(self, exc: Exception | None, now: float) -> None:
        """Handle a connection that ended during a request or between two.

        A request on a reused connection that ended without any answer is sent once more on a new connection (RFC 9112,
        section 9.3.1); only that second sending counts.
        """
        self._connection = None
        exchange = self._exchange
        # Between two requests nothing is lost.
        if exchange is None or self._connecting is not None:
            return
        # An answer without a length is complete; a request without any answer is sent again; all else failed.
        if exchange.reads and self._framing.until_close and exc is None:
            self._complete(now)
        elif not exchange.reads and not self._fresh:
            self._connecting = self._loop.create_task(self._connect())
        elif exc is None and exchange.reads:
            self._fail("truncated", "the connection was closed before the answer was complete", now)
        else:
            self._fail("reset", reason(exc) if exc else "the connection was closed without an answer", now)

    def _complete(self, now: float) -> None:
        head = self._framing.head
        exchange = self._exchange
        assert exchange is not None and head is not None
        exchange.http_status = head.status
        if not self._framing.keep_alive:
            self._drop()
        self._fresh = False
        self._finish("done", None, now, pause=0.0 if head.status == 200 else pause_s(head))

    def _fail(self, status: str, error: str, now: float | None = None) -> None:
        self._drop()
        if self._exchange is not None:
            self._finish(status, error, perf_counter() if now is None else now, pause=PAUSE_S)

    def _finish(self, status: str, error: str | None, now: float, *, pause: float) -> None:
        self._disarm()
        exchange = self._exchange
        assert exchange is not None
        exchange.status, exchange.error, exchange.end = status, error, now
        self._exchange = None
        if not self._source.ended(exchange):
            return
        if pause:
            self._loop.call_later(pause, self.send_next)
        else:
            self.send_next()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None and connecting is not asyncio.current_task(self._loop):
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


def pause_s(head: Head) -> float:
    """Return the seconds until the stream goes on after an error: what Retry-After asks for, within limits.

    The field has seconds or a date (RFC 9110, section 10.2.3); some servers write a fraction. A date counts from the
    server's own `Date`, if it sends one.
    """
    retry_after = head.fields.get("retry-after", "")
    try:
        seconds = float(retry_after)
    except ValueError:
        until = _moment(retry_after)
        now = _moment(head.fields.get("date", "")) or datetime.now(UTC)
        seconds = (until - now).total_seconds() if until else 0.0
    return min(max(seconds, PAUSE_S), LONGEST_PAUSE_S) if isfinite(seconds) else PAUSE_S


def _moment(text: str) -> datetime | None:
    """Parse a date of an HTTP field; None if it is not one."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
