"""Open loop: a clock sends, whatever the server does. Knows nothing of sockets; streams take what is due.

A request that is due goes to an idle kept-alive connection (the one used last), else to a new one, else, where the
plan's `connections` are all taken, it waits, which its latency shows and the audit tells.
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
    """Requests by the clock; only the turns of a session wait for the answer before them."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        super().__init__(plan, payloads, break_off=break_off)
        self._offsets = _offsets(plan, payloads)
        self._next_offset = next(self._offsets, None)
        self._alarm: PreciseTimer | None = None
        self._free: list[int] = []
        self._assigned: dict[int, Exchange] = {}
        self._waiting: deque[Exchange] = deque()

    def start(self, new: Callable[[int], Stream]) -> None:
        self._new = new
        self._started = perf_counter()
        self._alarm = PreciseTimer(asyncio.get_running_loop(), self._due)
        self._due()

    def close(self) -> None:
        super().close()
        if self._alarm is not None:
            self._alarm.close()

    def next(self, stream: int) -> Exchange | None:
        """What was handed to it, else the next turn of its conversation, else what waited longest."""
        if self.over.is_set():
            return None
        exchange = self._assigned.pop(stream, None)
        if exchange is None and stream in self._talks:
            exchange = self._follow_up(stream)
        elif exchange is None and self._waiting:
            exchange = self._waiting.popleft()
            exchange.stream = stream
            self.send_lags_s.append(perf_counter() - exchange.intended)
        return exchange

    def idle(self, stream: int) -> bool:
        self._running.discard(stream)
        self._free.append(stream)
        self._end_when_all_is_done()
        return not self.over.is_set()

    def _due(self) -> None:
        """Send all that is due by now, and wake again for the next."""
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
        """The stream is -1 until one takes it."""
        warm = offset < self._plan.warmup_seconds
        self._measured += not warm
        exchange = self._issue(len(self.exchanges), -1, self._started + offset, warm=warm)
        self._places[False] = max(self._places.values())  # all of warm-up is due before the first that is measured
        exchange.due = True
        return exchange

    def _hand_over(self, exchange: Exchange) -> None:
        if self._free:
            number = self._free.pop()
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
        self.streams[number].go_on()

    def _follow_up(self, stream: int) -> Exchange | None:
        """The next turn, intended for the moment its answer was there; none beyond the number of requests asked for."""
        if self._enough():
            del self._talks[stream]
            return None
        exchange = self._issue(len(self.exchanges), stream, perf_counter(), warm=False)
        self._measured += 1
        exchange.due = True
        return exchange

    def _end_when_all_is_done(self) -> None:
        if self._next_offset is None and not self._running and not self._waiting:
            self.over.set()


def _offsets(plan: LoadPlan, payloads: Payloads) -> Iterator[float]:
    """When requests are due, in seconds from the start, warm-up first."""
    if plan.load.mode == "trace":
        return iter(payloads.timestamps)
    ramp, rate, seconds = plan.load.mode == "ramp", plan.load.value, plan.seconds
    if seconds is not None and not ramp:
        seconds += plan.warmup_seconds
    times = arrival_offsets(
        plan.ramp_from if ramp else rate, plan.process, rate_to=rate, seconds=seconds, seed=plan.seed or 0
    )
    return times if plan.requests is None else _enough(times, plan)


def _enough(times: Iterator[float], plan: LoadPlan) -> Iterator[float]:
    """No more than the measured requests asked for."""
    measured = count()
    for time in times:
        if time >= plan.warmup_seconds and next(measured) >= (plan.requests or 0):
            return
        yield time
