"""Open loop: requests are sent by the clock, whatever the server does. Knows nothing of sockets.

A request that is due goes to an idle kept-alive connection (the one used last), else to a new one. If all of the plan's
`connections` are in use, it waits; its latency includes the wait and the audit reports it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from time import perf_counter

from backend.domain.load.arrivals import arrival_offsets
from backend.domain.load.records import LoadPlan
from backend.evaluate.load.level import LoadLevel
from backend.evaluate.load.payload import Payloads
from backend.evaluate.load.precise_timer import PreciseTimer
from backend.evaluate.load.stream import Exchange, Stream


class OpenLevel(LoadLevel):
    """Sends requests by the clock; only the turns of a session wait for the answer before them."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        super().__init__(plan, payloads, break_off=break_off)
        self._offsets = _offsets(plan, payloads)
        self._next_offset = next(self._offsets, None)
        self._alarm: PreciseTimer | None = None
        self._idle_streams: list[int] = []
        self._assigned: dict[int, Exchange] = {}
        self._waiting: deque[Exchange] = deque()

    def start(self, new: Callable[[int], Stream]) -> None:
        self._new = new
        self._started = perf_counter()
        self._alarm = PreciseTimer(asyncio.get_running_loop(), self._send_due)
        self._send_due()

    def close(self) -> None:
        super().close()
        if self._alarm is not None:
            self._alarm.close()

    def next(self, stream: int) -> Exchange | None:
        """Return the request assigned to the stream, else its conversation's next turn, else what waited longest."""
        if self.over.is_set():
            return None
        exchange = self._assigned.pop(stream, None)
        if exchange is None and stream in self._conversations:
            exchange = self._follow_up(stream)
        elif exchange is None and self._waiting:
            exchange = self._waiting.popleft()
            exchange.stream = stream
            self.send_lags_s.append(perf_counter() - exchange.intended)
        return exchange

    def idle(self, stream: int) -> bool:
        self._running.discard(stream)
        self._idle_streams.append(stream)
        self._end_when_all_is_done()
        return not self.over.is_set()

    def _send_due(self) -> None:
        """Send every request that is due by now, and set the timer for the next."""
        if self._alarm is None or self.over.is_set():
            return
        while self._next_offset is not None and self._started + self._next_offset <= perf_counter():
            offset, self._next_offset = self._next_offset, next(self._offsets, None)
            self._hand_over(self._arrival(offset))
            if self._enough():
                self._next_offset = None
        if self._next_offset is None:
            self._end_when_all_is_done()
        else:
            self._alarm.set(self._started + self._next_offset)

    def _arrival(self, offset: float) -> Exchange:
        """Create the request that is due at `offset`; its stream is -1 until one takes it."""
        warm = offset < self._plan.warmup_seconds
        self._measured += not warm
        exchange = self._issue(len(self.exchanges), -1, self._started + offset, warm=warm)
        self._positions[False] = max(
            self._positions.values()
        )  # all of warm-up is due before the first that is measured
        exchange.due = True
        return exchange

    def _hand_over(self, exchange: Exchange) -> None:
        if self._idle_streams:
            number = self._idle_streams.pop()
        elif len(self.streams) < self._plan.connections:
            number = len(self.streams)
            self.streams.append(self._new(number))
        else:
            self.waited += 1
            self._waiting.append(exchange)
            return
        exchange.stream = number
        self._assigned[number] = exchange
        self._running.add(number)
        self.send_lags_s.append(perf_counter() - exchange.intended)
        self.streams[number].send_next()

    def _follow_up(self, stream: int) -> Exchange | None:
        """Return the next turn, due the moment its answer had arrived; None once enough requests were sent."""
        if self._enough():
            del self._conversations[stream]
            return None
        exchange = self._issue(len(self.exchanges), stream, perf_counter(), warm=False)
        self._measured += 1
        exchange.due = True
        return exchange

    def _end_when_all_is_done(self) -> None:
        if self._next_offset is None and not self._running and not self._waiting:
            self.over.set()


def _offsets(plan: LoadPlan, payloads: Payloads) -> Iterator[float]:
    """Return when requests are due, in seconds from the start, warm-up first."""
    if plan.load.mode == "trace":
        return iter(payloads.timestamps)
    ramp, rate, seconds = plan.load.mode == "ramp", plan.load.value, plan.seconds
    if seconds is not None and not ramp:
        seconds += plan.warmup_seconds
    times = arrival_offsets(
        plan.ramp_from if ramp else rate, plan.process, rate_to=rate, seconds=seconds, seed=plan.seed or 0
    )
    return times if plan.requests is None else _limited(times, plan)


def _limited(times: Iterator[float], plan: LoadPlan) -> Iterator[float]:
    """Yield the times of warm-up and of as many measured requests as the plan has."""
    measured = count()
    for time in times:
        if time >= plan.warmup_seconds and next(measured) >= (plan.requests or 0):
            return
        yield time
