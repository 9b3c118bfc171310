"""Runs one level of load in this process: streams, warm-up, measured requests, and a watch over its own delays.

Knows nothing of what the answers say: `parse` reads them once the level is over. If an answer becomes part of the next
prompt, another process reads it earlier.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
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
"""Most bytes of one answer: 100,000 tokens with a running count on each come to 40 MB."""
LEAST_ANSWER_BYTES = 2**18
"""The level ends if less than this is left for each stream."""
UNKNOWN_MEMORY = 4 * 2**30
"""Bytes assumed to be free if the system does not say."""


@dataclass(frozen=True, slots=True)
class FinishedLevel:
    """Everything a level leaves behind. `refused_options`: the first answer was 400 or 422, which ended the level."""

    exchanges: list[Exchange]
    wall_s: float
    cpu_s: float
    lags_s: list[float]
    reconnects: int
    refused_options: bool
    send_lags_s: list[float] = field(default_factory=list)
    """Open loop: seconds from the moment each request was due until a connection took it."""
    waited: int = 0
    """Open loop: requests that had to wait for a connection."""


def add_up(parts: Sequence[FinishedLevel]) -> FinishedLevel:
    """Return all slices of one run as one level; the exchanges keep their order and are numbered through."""
    exchanges: list[Exchange] = []
    for number, part in enumerate(parts):
        first = len(exchanges)
        for exchange in part.exchanges:
            exchange.index += first
            exchange.slice = number
        exchanges += sorted(part.exchanges, key=lambda exchange: exchange.index)
    return FinishedLevel(
        exchanges,
        wall_s=sum(part.wall_s for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        lags_s=[lag for part in parts for lag in part.lags_s],
        reconnects=sum(part.reconnects for part in parts),
        refused_options=any(part.refused_options for part in parts),
        send_lags_s=[lag for part in parts for lag in part.send_lags_s],
        waited=sum(part.waited for part in parts),
    )


class LoadLevel:
    """Gives requests to its streams and counts answers; subclasses say in `start` and `next` when requests begin."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        # What streams read and write while they run.
        self.timeout_s = plan.timeout_s
        self.exchanges: list[Exchange] = []
        self.streams: list[Stream] = []
        self.refused_options = False
        self.over = asyncio.Event()
        self.has_follow_ups = payloads.has_follow_ups
        self.reader: AnswerReader | None = None
        """Reads answers for the turns that follow them; None if no answer is part of a next prompt."""
        self.failure: WorkError | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self.send_lags_s: list[float] = []
        self.waited = 0
        # What the level itself counts: prompts, conversations, answers.
        self._plan = plan
        self._payloads = payloads
        self._break_off = break_off
        self._positions = {True: 0, False: 0}
        """Position of the next prompt by whether it is for warm-up; prompts of warm-up come first."""
        self._conversation_numbers = count()
        self._conversations: dict[int, Conversation] = {}
        """The conversation whose next turn a stream is to send."""
        self._measured = 0
        self._ended = 0
        self._room = _available_memory() // 2
        """Bytes of answers that may still be stored: half of the free memory, as reading them takes as much again."""
        self._running: set[int] = set()

    def start(self, new: Callable[[int], Stream]) -> None:
        """Start the load; `new` creates the stream with that number."""
        raise NotImplementedError

    def next(self, stream: int) -> Exchange | None:
        """Return the stream's next request, or None if there is none for it now."""
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
        # 1. Count the answer and its bytes.
        self._ended += 1
        self._room -= exchange.size

        # 2. If a conversation goes on, its answer is read first; the stream waits for that.
        answered = exchange.status == "done" and exchange.http_status == 200
        conversation = exchange.conversation
        if conversation is not None and answered and conversation.has_next_turn and self.reader is not None:
            task = asyncio.get_running_loop().create_task(self._follow(exchange, self.reader))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            return False

        # 3. If the server refuses the options on the first answer, the level begins again with fewer.
        if self._break_off and self._ended == 1 and _container_status(exchange) in REFUSED_OPTIONS:
            self.refused_options = True
            self.over.set()
        return True

    async def _follow(self, exchange: Exchange, reader: AnswerReader) -> None:
        """Add the answer to its conversation, and let the stream send the next turn."""
        try:
            words = await reader.words(exchange.reads)
        except WorkError as failure:
            self.failure = failure
            self.over.set()
            return
        self.add_answer(exchange, words)
        self.streams[exchange.stream].send_next()

    def add_answer(self, exchange: Exchange, words: bytes) -> None:
        """Add an answer, a JSON text, to its conversation; its stream sends the next turn if there is one."""
        if exchange.conversation is not None and exchange.conversation.add_answer(words):
            self._conversations[exchange.stream] = exchange.conversation

    def _enough(self) -> bool:
        return self._plan.requests is not None and self._measured >= self._plan.requests

    def _issue(self, index: int, stream: int, intended: float, *, warm: bool) -> Exchange:
        """Create the next request: the next turn of the stream's conversation, else the next prompt."""
        # 1. Choose the line of the workload.
        conversation = self._conversations.pop(stream, None)
        if conversation is None:
            position = self._positions[warm]
            self._positions[warm] += 1
            line = (self._plan.first_line + position) % self._payloads.count
            conversation = self._payloads.start_conversation(line, next(self._conversation_numbers), position)
        else:
            line, position = conversation.line, conversation.position
        turn = None if conversation is None else conversation.turn

        # 2. Create the exchange.
        exchange = Exchange(
            index,
            stream,
            line,
            self._payloads.seed(position, turn or 0),
            warm,
            intended,
            conversation=conversation,
            turn=turn,
        )
        exchange.streamed = self._plan.stream
        exchange.most_bytes = self._allowed()
        self.exchanges.append(exchange)
        return exchange

    def _allowed(self) -> int:
        """Return how many bytes one more answer may have, so that all streams together do not fill the memory.

        Ends the level if too few are left.
        """
        allowed = min(ANSWER_BYTES, self._room // self._plan.streams)
        if allowed < LEAST_ANSWER_BYTES:
            self.failure = WorkError(
                "The answers of this level fill half of the memory that was free: ask for fewer requests or shorter "
                "answers."
            )
            self.over.set()
        return max(allowed, 0)


def _available_memory() -> int:
    """Return the bytes that programs may still allocate, by the kernel's estimate."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return UNKNOWN_MEMORY
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), UNKNOWN_MEMORY)


class ClosedLevel(LoadLevel):
    """A fixed number of streams, each of which waits for its answer before it sends again."""

    def __init__(self, plan: LoadPlan, payloads: Payloads, *, break_off: bool) -> None:
        super().__init__(plan, payloads, break_off=break_off)
        self._warm_left = [plan.warmup_requests] * plan.streams
        self._positions[False] = plan.warmup_requests * plan.streams
        self._in_warmup = set(range(plan.streams))
        self._deadline: float | None = None

    def start(self, new: Callable[[int], Stream]) -> None:
        self.streams = [new(number) for number in range(self._plan.streams)]
        self._running = set(range(self._plan.streams))
        for stream in self.streams:
            stream.send_next()

    def next(self, stream: int) -> Exchange | None:
        """Return the stream's warm-up requests, then the next of all measured ones; None once the level is over."""
        now = perf_counter()
        if self.over.is_set():
            return None

        # 1. Warm-up.
        if self._warm_left[stream]:
            number = (stream + 1) * self._plan.warmup_requests - self._warm_left[stream]
            self._warm_left[stream] -= 1
            return self._issue(number, stream, now, warm=True)

        # 2. The time of measuring starts when all streams are warm.
        self._in_warmup.discard(stream)
        if not self._in_warmup and self._deadline is None and self._plan.seconds is not None:
            self._deadline = now + self._plan.seconds

        # 3. The next measured request, unless there were enough or time is up.
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
    """Return the status of the server itself, also if SageMaker wrapped it.

    Called once per level, before anything is measured.
    """
    if exchange.http_status != MODEL_ERROR:
        return exchange.http_status
    body = b"".join(exchange.reads).partition(b"\r\n\r\n")[2]
    return container_status(MODEL_ERROR, body[body.find(b"{") : body.rfind(b"}") + 1])


async def run_to_end(level: LoadLevel, peer: Peer) -> FinishedLevel:
    """Run the level to its end; times are from this process's monotonic clock. Raises WorkError if its reader fails."""
    # 1. Start the reader of answers, if one is needed, and the watch over the loop's delays.
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    level.reader = await AnswerReader.start() if level.has_follow_ups else None
    watch = loop.create_task(_lag(lags))

    # 2. Load the server until the level is over.
    wall, cpu = perf_counter(), time.process_time()
    level.start(lambda number: Stream(number, level, peer, loop))
    await level.over.wait()
    wall, cpu = perf_counter() - wall, time.process_time() - cpu

    # 3. Stop everything that still runs.
    level.close()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    if level.reader is not None:
        await level.reader.close()
    if level.failure is not None:
        raise level.failure

    # 4. Return what is left to read.
    reconnects = sum(max(stream.reconnects, 0) for stream in level.streams)
    return FinishedLevel(
        level.exchanges, wall, cpu, lags, reconnects, level.refused_options, level.send_lags_s, level.waited
    )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off inside the block: a full collection would delay every stream at once."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def _lag(lags: list[float]) -> None:
    """Record how late the loop is for a timer, which is how late a time stamp may be."""
    while True:
        due = perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, perf_counter() - due))
