"""One level of load in this process: streams, warm-up, the steady window, and the generator's watch over itself.

Knows nothing of what the answers say; `parse` reads them once the level is over, and a process beside this one earlier
where an answer is part of the next prompt.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter

from backend.domain.errors import WorkError
from backend.domain.load.records import LoadPlan
from backend.domain.load.sagemaker_errors import MODEL_ERROR, container_status
from backend.evaluate.load import parse
from backend.evaluate.load.answer_reader import AnswerReader
from backend.evaluate.load.payload import Conversation, Payloads
from backend.evaluate.load.stream import Exchange, Peer, Stream

TICK_S = 0.02
REFUSED_OPTIONS = frozenset({400, 422})
ANSWER_BYTES = 64 * 2**20
"""The most that one answer may have: 100,000 tokens with a running count on each come to 40 MB."""
LEAST_ANSWER_BYTES = 2**18
"""Where less than that is left for each stream, the level ends."""
UNKNOWN_MEMORY = 4 * 2**30
"""Taken for what is free where the system does not say."""


@dataclass(frozen=True, slots=True)
class FinishedLevel:
    """What a level left behind. `refused_options`: the very first answer was 400 or 422, and the level was broken off
    there."""

    exchanges: list[Exchange]
    wall_s: float
    cpu_s: float
    lags_s: list[float]
    reconnects: int
    refused_options: bool
    send_lags_s: list[float] = field(default_factory=list)
    """Open loop: how late each request that was due was given to a connection."""
    waited: int = 0
    """Open loop: requests that found all connections taken."""


class LoadLevel:
    """The source of requests for its streams, and the counter of what became of them. `start` says how they begin."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        self.timeout_s = plan.timeout_s
        self.exchanges: list[Exchange] = []
        self.streams: list[Stream] = []
        self.refused_options = False
        self.over = asyncio.Event()
        self.has_follow_ups = payloads.has_follow_ups
        self.reader: AnswerReader | None = None
        """Reads answers for the turns after them; a level without such turns needs none."""
        self.failure: WorkError | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self.send_lags_s: list[float] = []
        self.waited = 0
        self._plan = plan
        self._payloads = payloads
        self._break_off = break_off
        self._places = {True: 0, False: 0}
        """Of the next prompt that is taken, in warm-up and of what is measured: those of warm-up come first."""
        self._talked = count()
        self._talks: dict[int, Conversation] = {}
        """Stream -> the conversation whose next turn it is to send."""
        self._measured = 0
        self._ended = 0
        self._room = _available_memory() // 2
        """Bytes of answers that may still be kept: reading them afterwards takes about as much again."""
        self._running: set[int] = set()

    def start(self, new: Callable[[int], Stream]) -> None:
        """Set the load going; `new` makes the stream of that number."""
        raise NotImplementedError

    def next(self, stream: int) -> Exchange | None:
        """The stream's next request; None where there is none for it now."""
        raise NotImplementedError

    def idle(self, stream: int) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        for task in self._reading:
            task.cancel()
        for stream in self.streams:
            stream.abandon()

    def request(self, exchange: Exchange) -> bytes:
        if exchange.conversation is not None:
            return self._payloads.next_turn_request(exchange.conversation, exchange.seed)
        return self._payloads.request(exchange.prompt, exchange.seed)

    def is_over(self, exchange: Exchange, *, late: bool) -> bool:
        return parse.is_over(exchange, late=late)

    def ended(self, exchange: Exchange) -> bool:
        self._ended += 1
        self._room -= exchange.size
        answered = exchange.status == "done" and exchange.http_status == 200
        talk = exchange.conversation
        if talk is not None and answered and talk.has_next_turn and self.reader is not None:
            task = asyncio.get_running_loop().create_task(self._follow(exchange, self.reader))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            return False
        if self._break_off and self._ended == 1 and _container_status(exchange) in REFUSED_OPTIONS:
            self.refused_options = True
            self.over.set()
        return True

    async def _follow(self, exchange: Exchange, reader: AnswerReader) -> None:
        """Take the answer into the conversation, and let the stream go on with its next turn."""
        try:
            words = await reader.words(exchange.reads)
        except WorkError as failure:
            self.failure = failure
            self.over.set()
            return
        self.add_answer(exchange, words)
        self.streams[exchange.stream].go_on()

    def add_answer(self, exchange: Exchange, words: bytes) -> None:
        """Take an answer, a JSON text, into its conversation: its stream next asks the turn behind it, if there is
        one."""
        if exchange.conversation is not None and exchange.conversation.add_answer(words):
            self._talks[exchange.stream] = exchange.conversation

    def _enough(self) -> bool:
        return self._plan.requests is not None and self._measured >= self._plan.requests

    def _issue(self, index: int, stream: int, intended: float, *, warm: bool) -> Exchange:
        """Make a request: the next turn of the stream's conversation, else the next prompt."""
        talk = self._talks.pop(stream, None)
        if talk is None:
            place, self._places[warm] = self._places[warm], self._places[warm] + 1
            line = (self._plan.first_line + place) % self._payloads.count
            talk = self._payloads.start_conversation(line, next(self._talked), place)
        else:
            line, place = talk.line, talk.place
        turn = None if talk is None else talk.turn
        exchange = Exchange(
            index, stream, line, self._payloads.seed(place, turn or 0), warm, intended, conversation=talk, turn=turn
        )
        exchange.streamed = self._plan.stream
        exchange.most_bytes = self._allowed()
        self.exchanges.append(exchange)
        return exchange

    def _allowed(self) -> int:
        """Bytes of one more answer, so that all streams together do not fill the memory. Ends the level where none are
        left."""
        allowed = min(ANSWER_BYTES, self._room // self._plan.streams)
        if allowed < LEAST_ANSWER_BYTES:
            self.failure = WorkError(
                "The answers of this level fill half of the memory that was free: ask for fewer requests or shorter answers."
            )
            self.over.set()
        return max(allowed, 0)


def _available_memory() -> int:
    """Bytes that programs may still take, as the kernel reckons."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return UNKNOWN_MEMORY
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), UNKNOWN_MEMORY)


class ClosedLevel(LoadLevel):
    """A fixed number of streams, each of which waits for its answer."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        super().__init__(plan, payloads, break_off=break_off)
        self._warm_left = [plan.warmup_requests] * plan.streams
        self._places[False] = plan.warmup_requests * plan.streams
        self._in_warmup = set(range(plan.streams))
        self._deadline: float | None = None

    def start(self, new: Callable[[int], Stream]) -> None:
        self.streams = [new(number) for number in range(self._plan.streams)]
        self._running = set(range(self._plan.streams))
        for stream in self.streams:
            stream.go_on()

    def next(self, stream: int) -> Exchange | None:
        """Its warm-up first, then the next of all measured ones; None when the level is spent."""
        now = perf_counter()
        if self.over.is_set():
            return None
        if self._warm_left[stream]:
            number = (stream + 1) * self._plan.warmup_requests - self._warm_left[stream]
            self._warm_left[stream] -= 1
            return self._issue(number, stream, now, warm=True)
        self._in_warmup.discard(stream)
        if not self._in_warmup and self._deadline is None and self._plan.seconds is not None:
            self._deadline = now + self._plan.seconds
        if self._enough() or (self._deadline is not None and now >= self._deadline):
            return None
        first = self._plan.streams * self._plan.warmup_requests
        self._measured += 1
        return self._issue(first + self._measured - 1, stream, now, warm=False)

    def idle(self, stream: int) -> bool:
        self._running.discard(stream)
        if not self._running:
            self.over.set()
        return False


def _container_status(exchange: Exchange) -> int | None:
    """Of the server itself, also where SageMaker wrapped it. Looked at once a level, before anything is measured."""
    if exchange.http_status != MODEL_ERROR:
        return exchange.http_status
    body = b"".join(exchange.reads).partition(b"\r\n\r\n")[2]
    return container_status(MODEL_ERROR, body[body.find(b"{") : body.rfind(b"}") + 1])


async def run_to_end(level: LoadLevel, peer: Peer) -> FinishedLevel:
    """Run the level to its end. Times are of this process's monotonic clock. Raises WorkError where its reader
    fails."""
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    level.reader = await AnswerReader.start() if level.has_follow_ups else None
    watch = loop.create_task(_lag(lags))
    wall, cpu = perf_counter(), time.process_time()
    level.start(lambda number: Stream(number, level, peer, loop))
    await level.over.wait()
    wall, cpu = perf_counter() - wall, time.process_time() - cpu
    level.close()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    if level.reader is not None:
        await level.reader.close()
    if level.failure is not None:
        raise level.failure
    reconnects = sum(max(stream.reconnects, 0) for stream in level.streams)
    return FinishedLevel(
        level.exchanges, wall, cpu, lags, reconnects, level.refused_options, level.send_lags_s, level.waited
    )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No garbage collection inside: a full collection would stop the clock of every stream at once."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def _lag(lags: list[float]) -> None:
    """How late the loop is for a timer: what a stamp may be late by."""
    while True:
        due = perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, perf_counter() - due))
