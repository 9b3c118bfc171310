"""One stream of requests: one connection, one request at a time, a stamp for every socket read.

During the run it only keeps bytes and counts them; what they say is read afterwards by `parse`. Knows nothing of levels
beyond the `Source` it asks for its next request.
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
"""After a failed request, so that a dead server is not hammered in a tight loop. Outside every latency."""
LONGEST_PAUSE_S = 10.0
"""Of what a server asks for by Retry-After (RFC 9110, section 10.2.3)."""
QUIET_S = 1.0
"""Silence after which an answer under way is looked at: it may be over although the response is not."""
LINGER_S = 0.25
"""Time from the end mark to the end of the response. A server that takes longer leaves its connections open."""
MOST_LINGERING = 2
"""Answers in a row that had to be ended so; from then on the end mark is the end, and nothing is waited for."""
FAILED_BYTES = 4096
"""What is kept of an answer that was too large."""


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
    """Sent by the clock, so that its latencies count from `intended`."""
    conversation: Conversation | None = None
    turn: int | None = None
    streamed: bool = True
    sent: float | None = None
    end: float | None = None
    status: str | None = None
    error: str | None = None
    http_status: int | None = None
    most_bytes: int = 2**62
    """Bytes that the answer may have."""
    size: int = 0
    """Bytes that came so far."""
    times: list[float] = field(default_factory=list)
    reads: list[bytes] = field(default_factory=list)


class Source(Protocol):
    """What a stream needs of its level."""

    timeout_s: float

    def next(self, stream: int) -> Exchange | None: ...

    def request(self, exchange: Exchange) -> bytes: ...

    def ended(self, exchange: Exchange) -> bool:
        """True where the stream may ask for its next request; where not, the source calls `go_on` once it may."""
        ...

    def idle(self, stream: int) -> bool:
        """The stream has nothing to send; True where its connection is to be kept for later."""
        ...

    def is_over(self, exchange: Exchange, *, late: bool) -> bool:
        """Whether the answer has said all, although the response goes on; `late`: its time is up."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """Where to connect: an address that is already resolved."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None


class Connection(asyncio.Protocol):
    """A connection of a stream, until the stream lets go of it: what an abandoned socket still says reaches nobody."""

    __slots__ = ("owner", "transport")

    def __init__(self, owner: Stream) -> None:
        self.owner: Stream | None = owner
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of asyncio's
        if self.owner is None:
            self.transport.abort()
        else:
            self.owner.connected(self)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        if self.owner is not None:
            self.owner.received(data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        now = perf_counter()
        if self.owner is not None:
            self.owner.lost(exc, now)

    def release(self) -> None:
        self.owner = None
        if self.transport is not None:
            self.transport.abort()


class Stream:
    """Runs until its source has nothing more. Never raises: what goes wrong becomes the exchange's status."""

    def __init__(self, number: int, source: Source, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.reconnects = -1
        self._source = source
        self._peer = peer
        self._loop = loop
        self._connection: Connection | None = None
        self._exchange: Exchange | None = None
        self._framing = Framing()
        self._fresh = True
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._marked_at: float | None = None
        """When the end mark came, where the response went on."""
        self._lingered = 0
        """Answers in a row whose response did not end after the end mark."""
        self._connecting: asyncio.Task[None] | None = None

    def go_on(self) -> None:
        """Send the next request, or come to rest."""
        exchange = self._exchange = self._source.next(self.number)
        if exchange is None:
            if not self._source.idle(self.number):
                self._drop()
            return
        self._deadline = perf_counter() + self._source.timeout_s
        self._timer = self._loop.call_later(min(QUIET_S, self._source.timeout_s), self._look)
        if self._connection is None:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._send(self._connection)

    def abandon(self) -> None:
        """Stop at once, whatever is under way."""
        self._exchange = None
        self._disarm()
        self._drop()

    async def _connect(self) -> None:
        peer, connection = self._peer, Connection(self)
        self._connection = connection
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

    def connected(self, connection: Connection) -> None:
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

    def received(self, data: bytes, now: float) -> None:
        exchange = self._exchange
        if exchange is None:
            self._drop()
            return
        exchange.times.append(now)
        exchange.reads.append(data)
        exchange.size += len(data)
        try:
            complete = self._framing.feed(data)
        except Malformed as error:
            self._fail("malformed", str(error), now)
            return
        if complete:
            self._lingered = 0
            self._complete(now)
        elif self._framing.marked:
            self._await_end(now)
        elif exchange.size > exchange.most_bytes:
            self._refuse(exchange, now)

    def _await_end(self, now: float) -> None:
        """The end mark came. Most servers end the response at once; some leave it open for good."""
        if self._lingered >= MOST_LINGERING:
            self._end_here(now)
            return
        self._framing.marked, self._marked_at = False, now
        self._disarm()
        self._timer = self._loop.call_later(max(0.0, min(LINGER_S, self._deadline - now)), self._look)

    def _look(self) -> None:
        """While a request is under way: end it where its time is up, or where the answer has ended and the response has
        not."""
        exchange = self._exchange
        assert exchange is not None
        now = perf_counter()
        late = now >= self._deadline
        last = exchange.times[-1] if exchange.times else now
        if last == self._marked_at:
            self._lingered += 1
            self._end_here(last)
        elif exchange.times and (late or now - last >= QUIET_S) and self._source.is_over(exchange, late=late):
            self._end_here(last)
        elif late:
            self._fail("timeout", f"no complete answer within {self._source.timeout_s:g} s")
        else:
            silent_until = last + QUIET_S
            next_look = min(silent_until if silent_until > now else now + QUIET_S, self._deadline)
            self._timer = self._loop.call_later(max(0.0, next_look - now), self._look)

    def _end_here(self, now: float) -> None:
        """The answer is complete; its connection is of no further use, since its response is not."""
        self._framing.keep_alive = False
        self._complete(now)

    def _refuse(self, exchange: Exchange, now: float) -> None:
        """An answer without end would fill the memory: let go of it."""
        words = f"the answer has more than {exchange.most_bytes // 2**20} MiB"
        del exchange.reads[1:], exchange.times[1:]
        exchange.reads[0] = exchange.reads[0][:FAILED_BYTES]
        exchange.size = len(exchange.reads[0])
        self._fail("too_large", words, now)

    def lost(self, exc: Exception | None, now: float) -> None:
        """The connection ended under way, or between two requests; a request that a kept-alive connection died under
        unheard is sent once more on a fresh one (RFC 9112, section 9.3.1), and only its second sending counts."""
        self._connection = None
        exchange = self._exchange
        if exchange is None or self._connecting is not None:
            return
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
            self._loop.call_later(pause, self.go_on)
        else:
            self.go_on()

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
    """Seconds until the stream goes on after an error: what the server asks for by Retry-After, within reason.

    The field holds seconds or a date (RFC 9110, section 10.2.3); some servers write a fraction. A date counts from the
    server's own `Date`, where it sends one.
    """
    wanted = head.fields.get("retry-after", "")
    try:
        seconds = float(wanted)
    except ValueError:
        until, now = _moment(wanted), _moment(head.fields.get("date", "")) or datetime.now(UTC)
        seconds = (until - now).total_seconds() if until else 0.0
    return min(max(seconds, PAUSE_S), LONGEST_PAUSE_S) if isfinite(seconds) else PAUSE_S


def _moment(text: str) -> datetime | None:
    """A date as HTTP writes it; None where it is none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
