"""An OpenAI-compatible server that streams in the ways in which real ones do: the first part of the path is the mode.

A process of its own: `python tests/fakes/streaming_server.py` prints its port, then serves until it is killed. `MODES`
lists the ways of answering, `HOSTILE` those of a server that means harm. An endpoint is
`http://127.0.0.1:PORT/MODE/v1`. `GET /MODE/seen` gives the parsed bodies of all requests to that mode.
"""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

WORDS = [" alpha", " beta", " gamma", " delta", " eps", " zeta", " eta", " theta"]
PROMPT_TOKENS = 20
GAP_S = 0.005
"""Between two chunks."""
OPEN_S = 60.0
"""How long a connection stays open after an answer has ended."""
NEWER_PARAMETER = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
RETRY_AFTER = {"busy": "1", "busyfloat": "0.5", "busydate": "Wed, 21 Oct 2026 07:28:00 GMT"}
RECEIVED: dict[str, list[dict[str, Any]]] = defaultdict(list)


class Answer:
    """One request, and the pieces that answers to it are made of."""

    def __init__(self, handler: Handler, body: dict[str, Any], chat: bool) -> None:
        self.handler, self.body, self.chat = handler, body, chat
        value = body.get("max_tokens") or body.get("max_completion_tokens") or len(WORDS)
        self.words = WORDS[: min(value, len(WORDS))]

    @property
    def usage(self) -> dict[str, int]:
        """The counts of the whole answer: one token a word."""
        tokens = len(self.words)
        return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}

    def choice(
        self, text: str | None = None, *, delta: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        """One choice: of a chat a delta, of a completion text."""
        values = {"delta": delta if delta is not None else ({} if text is None else {"content": text})}
        return {"index": 0, "finish_reason": finish, **(values if self.chat else {"text": text or ""})}

    def document(self, choice: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        """A chunk with that choice, or with none."""
        choices = [] if choice is None else [choice]
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": choices, **more}

    def start(self) -> None:
        """The head of a stream in HTTP chunks."""
        self.handler.head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        time.sleep(0.02)

    def send(self, data: bytes) -> None:
        """One HTTP chunk."""
        self.handler.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, document: dict[str, Any], prefix: bytes = b"data: ", end: bytes = b"\n\n") -> None:
        self.send(prefix + json.dumps(document).encode() + end)

    def stream(self, choices: list[dict[str, Any]]) -> None:
        """Send each, and wait a moment."""
        for choice in choices:
            self.event(self.document(choice))
            time.sleep(GAP_S)

    def spoken(self) -> list[dict[str, Any]]:
        """A choice a word."""
        return [self.choice(word) for word in self.words]

    def finish(self, reason: str = "length", *, usage: bool = True) -> None:
        """The finish reason, the usage, the end mark, and the end of the response."""
        self.event(self.document(self.choice(finish=reason)))
        if usage:
            self.event(self.document(None, usage=self.usage))
        self.done()

    def done(self) -> None:
        self.send(b"data: [DONE]\n\n")
        self.close()

    def close(self) -> None:
        """The last HTTP chunk."""
        self.handler.raw(b"0\r\n\r\n")

    def whole(self) -> bytes:
        """All events of an answer."""
        documents = [self.document(choice) for choice in [*self.spoken(), self.choice(finish="length")]]
        documents.append(self.document(None, usage=self.usage))
        return b"".join(b"data: %s\n\n" % json.dumps(document).encode() for document in documents) + b"data: [DONE]\n\n"


def plain(x: Answer) -> None:
    x.start()
    x.stream(x.spoken())
    x.finish(usage=bool((x.body.get("stream_options") or {}).get("include_usage")))


def role(x: Answer) -> None:
    """An empty chunk with the role comes at once."""
    x.start()
    x.event(x.document(x.choice(delta={"role": "assistant", "content": ""})))
    time.sleep(0.05)
    x.stream(x.spoken())
    x.finish()


def _reasoning(x: Answer, *names: str) -> None:
    """The first half of the words is reasoning, under each of those names."""
    half = len(x.words) // 2
    x.start()
    x.stream([x.choice(delta=dict.fromkeys(names, word)) for word in x.words[:half]])
    x.stream([x.choice(word) for word in x.words[half:]])
    x.finish("stop")


def reason(x: Answer) -> None:
    _reasoning(x, "reasoning")


def both(x: Answer) -> None:
    """Reasoning under both of its names."""
    _reasoning(x, "reasoning", "reasoning_content")


def tool(x: Answer) -> None:
    """Nothing but a tool call."""
    called = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    x.start()
    x.event(x.document(x.choice(delta={"role": "assistant", "content": None, "tool_calls": [called]})))
    x.stream([x.choice(delta={"tool_calls": [{"index": 0, "function": {"arguments": word}}]}) for word in x.words])
    x.finish("tool_calls")


def moonshot(x: Answer) -> None:
    """The usage stands inside the last choice."""
    x.start()
    x.stream(x.spoken())
    x.event(x.document({**x.choice(finish="stop"), "usage": x.usage}))
    x.done()


def nousage(x: Answer) -> None:
    x.start()
    x.stream(x.spoken())
    x.finish("stop", usage=False)


def multi(x: Answer) -> None:
    """Four tokens a chunk."""
    x.start()
    for first in range(0, len(x.words), 4):
        x.event(x.document(x.choice("".join(x.words[first : first + 4]))))
        time.sleep(4 * GAP_S)
    x.finish()


def odd(x: Answer) -> None:
    """Comments, no space after the colon, CRLF, and an event without choices first (Azure)."""
    form = (b"data:", b"\r\n\r\n")
    x.start()
    x.send(b": ping\r\n\r\n")
    x.event(x.document(None, prompt_filter_results=[]), *form)
    for choice in x.spoken():
        x.event(x.document(choice), *form)
        x.send(b":\r\n\r\n")
        time.sleep(GAP_S)
    x.event(x.document(x.choice(finish="stop")), *form)
    x.event(x.document(None, usage=x.usage), *form)
    x.send(b"data:[DONE]\r\n\r\n")
    x.close()


def router(x: Answer) -> None:
    """A comment inside data (OpenRouter)."""
    x.start()
    x.send(b"data: : OPENROUTER PROCESSING\n\n")
    x.stream(x.spoken())
    x.finish("stop")


def pingev(x: Answer) -> None:
    """A named event that only keeps the connection open."""
    x.start()
    x.send(b'event: ping\ndata: {"type":"ping"}\n\n')
    x.stream(x.spoken())
    x.finish("stop")


def _failing(x: Answer, event: bytes, *, marked: bool = True) -> None:
    """Three words, then that event."""
    x.start()
    x.stream(x.spoken()[:3])
    x.send(event)
    if marked:
        x.send(b"data: [DONE]\n\n")
    x.close()


def errev(x: Answer) -> None:
    _failing(x, b'event: error\ndata: {"message":"CUDA out of memory","code":500}\n\n')


def errev2(x: Answer) -> None:
    """An error field of its own (llama.cpp)."""
    _failing(x, b'error: {"code":500,"message":"slot unavailable","type":"server_error"}\n\n', marked=False)


def errthen(x: Answer) -> None:
    _failing(x, b'event: error\ndata: {"error":{"message":"CUDA out of memory","code":500}}\n\n')


def openend(x: Answer) -> None:
    """The end mark comes; the response does not end."""
    x.start()
    x.stream(x.spoken())
    x.event(x.document(x.choice(finish="length"), usage=x.usage))
    x.send(b"data: [DONE]\n\n")
    x.handler.leave_open()


def unmarked(x: Answer) -> None:
    """Finish reason and usage come, no end mark, and the response does not end."""
    x.start()
    x.stream(x.spoken())
    x.event(x.document(x.choice(finish="length")))
    x.event(x.document(None, usage=x.usage))
    x.handler.leave_open()


def raw(x: Answer) -> None:
    """No length and no HTTP chunks; the connection stays open after the end mark."""
    x.handler.head("200 OK", "Content-Type: text/event-stream")
    for choice in x.spoken():
        x.handler.raw(b"data: %s\n\n" % json.dumps(x.document(choice)).encode())
        time.sleep(GAP_S)
    usage = json.dumps(x.document(x.choice(finish="length"), usage=x.usage)).encode()
    x.handler.raw(b"data: %s\n\ndata: [DONE]\n\n" % usage)
    x.handler.leave_open()


def buffered(x: Answer) -> None:
    """A proxy holds the stream back and sends all of it at once."""
    x.start()
    time.sleep(0.1)
    x.send(x.whole())
    x.close()


def newparam(x: Answer) -> None:
    if "max_tokens" in x.body:
        error = {"message": NEWER_PARAMETER, "type": "invalid_request_error", "param": "max_tokens"}
        x.handler.whole({"error": error}, "400 Bad Request")
    else:
        plain(x)


def strict422(x: Answer) -> None:
    """Refuses fields that it does not know, as FastAPI's validation does."""
    if "stream_options" in x.body:
        wrong = {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}
        x.handler.whole({"detail": [wrong]}, "422 Unprocessable Entity")
    else:
        plain(x)


def empty(x: Answer) -> None:
    """No content at all, though the usage counts tokens."""
    x.start()
    x.finish("stop")


def _busy(x: Answer) -> None:
    """Every second request is refused for a moment."""
    mode = x.handler.mode
    if len(RECEIVED[mode]) % 2 == 0:
        x.handler.whole(
            {"error": {"message": "Rate limit reached"}}, "429 Too Many Requests", f"Retry-After: {RETRY_AFTER[mode]}"
        )
    else:
        plain(x)


def whole(x: Answer) -> None:
    """Not streamed."""
    x.handler.whole(x.document(x.choice(delta={"content": "".join(x.words)}, finish="length"), usage=x.usage))


LEAVE_OPEN = ("openend", "unmarked", "raw")
"""They leave streams open; an answer that is not streamed ends."""


def deep(x: Answer) -> None:
    x.start()
    x.send(b"data: " + b"[" * 100_000 + b"\n\n")
    x.done()


def oddchoices(x: Answer) -> None:
    """JSON of another form than promised."""
    x.start()
    x.send(b'data: {"choices":[5],"usage":{"completion_tokens":"8"}}\n\n')
    x.done()


def nullchoices(x: Answer) -> None:
    x.start()
    x.send(b'data: {"choices":null,"usage":{"completion_tokens":-3,"prompt_tokens":1e400}}\n\n')
    x.finish()


def endless(x: Answer) -> None:
    """A stream without end, as fast as it goes."""
    x.start()
    while True:
        x.send(b": " + b"x" * 65_000 + b"\n\n")


def endlessline(x: Answer) -> None:
    """A line without end."""
    x.start()
    while True:
        x.send(b"data: " + b"x" * 65_000)


def endlesshead(x: Answer) -> None:
    """Interim responses without end."""
    while True:
        x.handler.raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def drip(x: Answer) -> None:
    """A byte now and then, without end."""
    x.start()
    while True:
        x.send(b":")
        time.sleep(0.05)


MODES: dict[str, Callable[[Answer], None]] = {
    **{
        mode.__name__: mode
        for mode in (
            *(plain, role, reason, both, tool, moonshot, nousage, multi, odd, router, pingev, errev, errev2, errthen),
            *(openend, unmarked, raw, buffered, newparam, strict422, empty),
        )
    },
    **dict.fromkeys(RETRY_AFTER, _busy),
    "nomodels": plain,
}
HOSTILE = {mode.__name__: mode for mode in (deep, oddchoices, nullchoices, endless, endlessline, endlesshead, drip)}


class Handler(BaseHTTPRequestHandler):
    """Reads a request and lets its mode answer."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard output has the port."""

    @property
    def mode(self) -> str:
        return self.path.split("/")[1]

    def raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def head(self, status: str, *fields: str) -> None:
        self.raw("\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode())

    def whole(self, document: Any, status: str = "200 OK", *fields: str) -> None:
        body = json.dumps(document).encode()
        self.head(status, "Content-Type: application/json", f"Content-Length: {len(body)}", *fields)
        self.raw(body)

    def leave_open(self) -> None:
        """Keep the connection until the client leaves, at most OPEN_S."""
        self.connection.settimeout(OPEN_S)
        self.rfile.read(1)
        self.close_connection = True

    def do_GET(self) -> None:
        if self.path.endswith("/seen"):
            self.whole(RECEIVED[self.mode])
        elif self.path.endswith("/models") and self.mode == "endlessmodels":
            self.head("200 OK", "Content-Type: application/json", "Transfer-Encoding: chunked")
            for _ in count():
                self.raw(b"10000\r\n" + b" " * 65536 + b"\r\n")
        elif self.path.endswith("/models") and self.mode == "deepmodels":
            self.head("200 OK", "Content-Type: application/json", "Content-Length: 100000")
            self.raw(b"[" * 100_000)
        elif self.path.endswith("/models") and self.mode != "nomodels":
            self.whole({"object": "list", "data": [{"id": "fake", "object": "model"}]})
        else:
            self.whole({"detail": "Not Found"}, "404 Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        RECEIVED[self.mode].append(body)
        ways = {**MODES, **HOSTILE, **(dict.fromkeys(LEAVE_OPEN, whole) if not body.get("stream") else {})}
        if self.mode in ways and self.path.partition("/v1")[2] in {"/completions", "/chat/completions"}:
            ways[self.mode](Answer(self, body, "/chat/" in self.path))
        else:
            self.whole({"detail": "Not Found"}, "404 Not Found")

    def handle(self) -> None:
        """As inherited; a client that leaves is no failure."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
