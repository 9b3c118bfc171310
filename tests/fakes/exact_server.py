"""An OpenAI-compatible server that knows, on the machine's monotonic clock, when it really sent each chunk.

A process of its own: `python tests/fakes/exact_server.py --rate 47 --ttft-ms 100` prints its port, then serves
completions and chat until it is killed. Every answer's text begins with `r<N> `, N being its number in the log that
`GET /sent` gives: `[{"number", "received", "sends": [seconds of each content chunk]}]`. Sends bypass the event loop's
write queue (os.write), so the stamp is that of the system call. `--metrics` tells counters at `/metrics` as vLLM does,
with `--drafted` and `--accepted` a chunk those of speculation too. `--prefix-cache BLOCK` keeps prompts as vLLM does:
of one that begins as an earlier one did, so many tokens of four characters in whole blocks are there at once, and the
rest of its time to the first token is taken; `--metrics` and, with `--details`, usage tell it. `--jitter` and
`--wander` make its pauses vary as a real server's do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import os
import random
import signal
from collections import deque
from itertools import takewhile
from time import perf_counter
from typing import ClassVar

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PROMPT_TOKENS = 7
WANDER_S = 2.0
"""After so many seconds a wandering speed has forgotten all but 1/e of what it was."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Pace:
    """What every pause is multiplied by: noise of its own (lognormal), and a speed that wanders slowly
    (Ornstein-Uhlenbeck)."""

    def __init__(self, jitter: float, wander: float) -> None:
        self.jitter, self.wander = jitter, wander
        self.at, self.drift = perf_counter(), random.gauss(0, wander)

    def factor(self) -> float:
        now = perf_counter()
        likelihood = math.exp((self.at - now) / WANDER_S)
        self.drift = self.drift * likelihood + random.gauss(0, self.wander) * math.sqrt(1 - likelihood**2)
        self.at = now
        return math.exp(self.drift + random.gauss(0, self.jitter))


class Answer:
    """One answer under way: its number, its body's shape and the times at which its content chunks left."""

    def __init__(self, number: int, received: float, body: dict, chat: bool, options: argparse.Namespace) -> None:
        self.number = number
        self.received = received
        self.sends: list[float] = []
        self.tokens = body.get("max_completion_tokens") or body["max_tokens"]
        self.sent_tokens = 0
        stream_options = body.get("stream_options") or {}
        self.usage = bool(stream_options.get("include_usage")) and not options.no_usage
        self.continuous = self.usage and bool(stream_options.get("continuous_usage_stats"))
        self.chat = chat
        self.streamed = body.get("stream", False)
        self.prompt = body.get("prompt") or json.dumps(body.get("messages"))
        self.salt = body.get("cache_salt", "")
        self.prompt_tokens, self.cached = PROMPT_TOKENS, 0
        if options.prefix_cache:
            self.prompt_tokens = max(1, len(self.prompt) // 4)
            self.cached = self.count_cached(options.prefix_cache)
        self.details = options.details

    def count_cached(self, block: int) -> int:
        """Tokens of the prompt in whole blocks that one before it of the same salt began with; never the last one."""
        others = (other.prompt for other in Server.log if other.salt == self.salt)
        longest = max(
            (
                sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.prompt, other, strict=False)))
                for other in others
            ),
            default=0,
        )
        return min(longest // 4, self.prompt_tokens - 1) // block * block

    def content(self, tokens: int) -> bytes:
        first = f"r{self.number} " if self.sent_tokens == 0 else ""
        text = first + "".join(f"w{n} " for n in range(self.sent_tokens, self.sent_tokens + tokens))
        self.sent_tokens += tokens
        part = b'"delta":{"content":"%s"}' if self.chat else b'"text":"%s"'
        end = b'"length"' if self.sent_tokens >= self.tokens else b"null"
        choice = part % text.encode()
        return chunk(
            b'data: {"id":"x","choices":[{"index":0,%s,"finish_reason":%s}]%s}\n\n' % (choice, end, self.running())
        )

    def document(self) -> bytes:
        text = f"r{self.number} " + "".join(f"w{n} " for n in range(self.tokens))
        self.sent_tokens = self.tokens
        part = b'"message":{"role":"assistant","content":"%s"}' if self.chat else b'"text":"%s"'
        return b'{"id":"x","choices":[{"index":0,%s,"finish_reason":"length"}],%s}' % (
            part % text.encode(),
            self.usage_field(),
        )

    def running(self) -> bytes:
        return b"," + self.usage_field() if self.continuous else b""

    def usage_field(self) -> bytes:
        counts = (self.prompt_tokens, self.prompt_tokens + self.sent_tokens, self.sent_tokens)
        reported = b',"prompt_tokens_details":{"cached_tokens":%d}' % self.cached if self.details else b""
        return b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%s}' % (*counts, reported)

    def role(self) -> bytes:
        return chunk(
            b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]%s}\n\n' % self.running()
        )

    def ending(self) -> bytes:
        usage = chunk(b'data: {"id":"x","choices":[],%s}\n\n' % self.usage_field()) if self.usage else b""
        return usage + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server(asyncio.Protocol):
    """One connection: one request at a time."""

    log: ClassVar[list[Answer]] = []
    at_work: ClassVar[set[Answer]] = set()
    queue: ClassVar[deque[tuple[Server, Answer]]] = deque()

    def __init__(self, options: argparse.Namespace, pace: Pace) -> None:
        self.options = options
        self.pace = pace
        self.buffer = b""
        self.answer: Answer | None = None
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None:
            self.leave(self.answer)

    def write(self, data: bytes) -> None:
        """Straight to the socket; what does not fit at once goes through the loop."""
        sent = 0
        if self.transport.get_write_buffer_size() == 0:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                sent = os.write(self.fd, data)
        if sent < len(data):
            self.transport.write(data[sent:])

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self.buffer += data
        head, blank, rest = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        path = head.split(b" ", 2)[1]
        if head.startswith(b"GET "):
            self.buffer = b""
            if path == b"/metrics" and self.options.metrics:
                self.put(self.counters(), b"text/plain; version=0.0.4")
            else:
                self.tell(self.sent() if path == b"/sent" else {"data": [{"id": "exact"}]})
            return
        size = int(next(line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")))
        if len(rest) >= size:
            self.buffer = rest[size:]
            self.begin(now, json.loads(rest[:size]), b"/chat/" in path)

    def begin(self, received: float, body: dict, chat: bool) -> None:
        answer = self.answer = Answer(len(self.log), received, body, chat, self.options)
        self.log.append(answer)
        if self.options.slots and len(self.at_work) >= self.options.slots:
            self.queue.append((self, answer))
        else:
            self.work(answer)

    def work(self, answer: Answer) -> None:
        """Begin to answer: at once, or where there are `--slots`, when one is free."""
        self.at_work.add(answer)
        if not answer.streamed:
            whole = (self.options.ttft_ms / 1000 + answer.tokens / self.options.rate) * self.pace.factor()
            self.loop.call_later(whole, self.whole, answer)
            return
        self.write(HEAD + (answer.role() if self.options.role_chunk else b""))
        first = self.options.ttft_ms / 1000 * self.pace.factor() * (1 - answer.cached / answer.prompt_tokens)
        self.due = perf_counter() + first
        self.loop.call_later(first, self.step, answer)

    def leave(self, answer: Answer) -> None:
        self.answer = None
        self.at_work.discard(answer)
        while self.queue and len(self.at_work) < self.options.slots:
            other, waiting = self.queue.popleft()
            if other.answer is waiting:
                other.work(waiting)

    def step(self, answer: Answer) -> None:
        if self.answer is not answer:
            return
        data = answer.content(min(self.options.tokens_per_chunk, answer.tokens - answer.sent_tokens))
        answer.sends.append(perf_counter())
        self.write(data)
        if answer.sent_tokens >= answer.tokens:
            self.leave(answer)
            self.write(answer.ending())
            return
        self.due += self.options.tokens_per_chunk / self.options.rate * self.pace.factor()
        self.loop.call_later(max(0.0, self.due - perf_counter()), self.step, answer)

    def whole(self, answer: Answer) -> None:
        """Not streamed: everything at once, when the last token would have left."""
        if self.answer is not answer:
            return
        self.leave(answer)
        body = answer.document()
        answer.sends.append(perf_counter())
        self.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    def sent(self) -> list[dict]:
        return [
            {"number": a.number, "received": a.received, "sends": a.sends, "prompt": a.prompt, "salt": a.salt}
            for a in self.log
        ]

    def counters(self) -> bytes:
        passes = sum(len(answer.sends) for answer in self.log)
        values = {"generation_tokens": sum(answer.sent_tokens for answer in self.log)}
        if self.options.prefix_cache:
            values["prefix_cache_queries"] = sum(answer.prompt_tokens for answer in self.log)
            values["prefix_cache_hits"] = sum(answer.cached for answer in self.log)
        if self.options.drafted:
            values["spec_decode_num_draft_tokens"] = passes * self.options.drafted
            values["spec_decode_num_accepted_tokens"] = passes * self.options.accepted
        block = f'vllm:cache_config_info{{block_size="{self.options.prefix_cache}",engine="0"}} 1.0\n' * bool(
            self.options.prefix_cache
        )
        lines = [f'vllm:{name}_total{{engine="0",model_name="exact"}} {n:.1f}\n' for name, n in values.items()]
        return "".join([block, *lines]).encode()

    def tell(self, document: object) -> None:
        self.put(json.dumps(document).encode(), b"application/json")

    def put(self, body: bytes, kind: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body
        )


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    pace = Pace(options.jitter, options.wander)
    server = await loop.create_server(lambda: Server(options, pace), "127.0.0.1", options.port, backlog=4096)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second and stream")
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--role-chunk", action="store_true", help="send an empty role chunk at once")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--metrics", action="store_true", help="tell counters at /metrics, as vLLM does")
    parser.add_argument(
        "--prefix-cache", type=int, default=0, metavar="BLOCK", help="keep prompts, in blocks of so many tokens"
    )
    parser.add_argument("--details", action="store_true", help="tell cached tokens in usage")
    parser.add_argument("--drafted", type=int, default=0, help="tokens guessed a chunk, by those counters")
    parser.add_argument("--accepted", type=int, default=0, help="of these, tokens kept")
    parser.add_argument("--slots", type=int, default=0, help="answers at a time, the rest wait; 0 is no limit")
    parser.add_argument(
        "--jitter", type=float, default=0.0, help="spread of each pause: standard deviation of its logarithm"
    )
    parser.add_argument(
        "--wander", type=float, default=0.0, help="spread of the speed, which changes over seconds: the same"
    )
    parser.add_argument("--realtime", action="store_true", help="run as soon as bytes come, as the load generator does")
    options = parser.parse_args()
    if options.realtime:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    uvloop.run(serve(options))


if __name__ == "__main__":
    main()
