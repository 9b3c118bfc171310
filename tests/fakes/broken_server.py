"""An OpenAI-compatible server with one fault at a time: the request's `model` names it. `FAULTS` lists them.

A process of its own: `python tests/fakes/broken_server.py` prints its port, then serves until it is killed;
with `--cert FILE --key FILE` over TLS; with `--token T` it wants that bearer token; `--die-after N`
makes it exit hard in the middle of answer N.
`GET /seen` gives the parsed bodies of all requests so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

WORDS = ["the ", "quick ", "brown ", "fox ", "jumps ", "over ", "it ", "all "]
PROMPT_TOKENS = 5
FOREVER = asyncio.Event()
"""Never set, and never collected, as a local event with its waiter would be."""
JSON, EVENTS = "application/json", "text/event-stream"


class Exchange:
    """A request and the ways of answering it."""

    def __init__(self, writer: asyncio.StreamWriter, body: dict, chat: bool) -> None:
        self.writer, self.body, self.chat = writer, body, chat
        self.options = body.get("stream_options") or {}
        self.sent = 0

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(
        self, framing: str = "Transfer-Encoding: chunked", kind: str = EVENTS, status: str = "200 OK"
    ) -> None:
        await self.raw(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode())

    async def whole(self, body: bytes, kind: str = JSON, status: str = "200 OK") -> None:
        await self.head(f"Content-Length: {len(body)}", kind, status)
        await self.raw(body)

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def usage(self) -> dict:
        return {
            "prompt_tokens": PROMPT_TOKENS,
            "total_tokens": PROMPT_TOKENS + self.sent,
            "completion_tokens": self.sent,
        }

    def event(self, text: str, tokens: int = 1, finish: str | None = None, eol: str = "\n") -> bytes:
        self.sent += tokens
        choice = {
            "index": 0,
            "finish_reason": finish,
            **({"delta": {"content": text}} if self.chat else {"text": text}),
        }
        document = {"choices": [choice]}
        if self.options.get("continuous_usage_stats"):
            document["usage"] = self.usage()
        return f"data: {json.dumps(document)}{eol}{eol}".encode()

    def ending(self, eol: str = "\n") -> bytes:
        usage = json.dumps({"choices": [], "usage": self.usage()})
        text = f"data: {usage}{eol}{eol}" if self.options.get("include_usage") else ""
        return f"{text}data: [DONE]{eol}{eol}".encode()

    def events(self, eol: str = "\n") -> list[bytes]:
        created = [self.event(word, finish="length" if word == WORDS[-1] else None, eol=eol) for word in WORDS]
        return [*created, self.ending(eol)]

    def chunked(self, eol: str = "\n", trailer: bytes = b"\r\n") -> bytes:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        return head + b"".join(b"%x;note=1\r\n%s\r\n" % (len(e), e) for e in self.events(eol)) + b"0\r\n" + trailer

    async def some(self) -> None:
        """A good beginning."""
        await self.head()
        for word in WORDS[:3]:
            await self.chunk(self.event(word))

    def reset(self) -> None:
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def ok(x: Exchange) -> None:
    await x.head()
    for event in x.events():
        await x.chunk(event)
    await x.raw(b"0\r\n\r\n")


async def hang(x: Exchange) -> None:
    await FOREVER.wait()


async def hang_midway(x: Exchange) -> None:
    await x.some()
    await FOREVER.wait()


async def reset_midway(x: Exchange) -> None:
    await x.some()
    x.reset()


async def close_midway(x: Exchange) -> None:
    await x.some()
    x.writer.close()


async def close_unanswered(x: Exchange) -> None:
    x.writer.close()


async def close_after(x: Exchange) -> None:
    """Closes a kept-alive connection without having said so."""
    await ok(x)
    x.writer.close()


async def malformed_event(x: Exchange) -> None:
    await x.some()
    await x.chunk(b'data: {"choices": [{"text"\n\n')
    await x.chunk(x.ending())
    await x.raw(b"0\r\n\r\n")


async def malformed_chunk(x: Exchange) -> None:
    await x.some()
    await x.raw(b"zz\r\nnot a size\r\n")


async def not_http(x: Exchange) -> None:
    await x.raw(b"220 mail.example ESMTP\r\n\r\n")


async def html(x: Exchange) -> None:
    await x.whole(b"<html><body>Please log in</body></html>", "text/html")


async def html_as_json(x: Exchange) -> None:
    await x.whole(b"<html><body>Please log in</body></html>")


async def http_429(x: Exchange) -> None:
    await x.whole(b'{"error": {"message": "slow down"}}', status="429 Too Many Requests")


async def retry_after(x: Exchange) -> None:
    """Asks for a second of patience."""
    await x.raw(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")


async def fails_at_second_turn(x: Exchange) -> None:
    if len(x.body.get("messages", [])) > 1:
        await http_503(x)
    else:
        await ok(x)


async def http_503(x: Exchange) -> None:
    await x.whole(b"<h1>overloaded</h1>", "text/html", "503 Service Unavailable")


async def error_event(x: Exchange) -> None:
    await x.some()
    await x.chunk(b'data: {"error": {"message": "engine died", "code": 500}}\n\n')
    await x.chunk(b"data: [DONE]\n\n")
    await x.raw(b"0\r\n\r\n")


async def no_usage(x: Exchange) -> None:
    x.options = {}
    await ok(x)


async def no_continuous(x: Exchange) -> None:
    """Refuses the option that few servers know."""
    if "continuous_usage_stats" in x.options:
        await x.whole(b'{"error": {"message": "unknown field"}}', status="400 Bad Request")
    else:
        await ok(x)


async def no_stream_options(x: Exchange) -> None:
    if "stream_options" in x.body:
        await x.whole(b'{"detail": "extra fields not permitted"}', status="422 Unprocessable Entity")
    else:
        await ok(x)


async def always_400(x: Exchange) -> None:
    await x.whole(b'{"error": {"message": "the prompt is too long"}}', status="400 Bad Request")


async def final_usage(x: Exchange) -> None:
    """Ignores continuous_usage_stats; two chunks, six tokens."""
    x.options = {"include_usage": True}
    await x.head()
    await x.chunk(x.event("two words ", tokens=2))
    await x.chunk(x.event("and four words more", tokens=4, finish="stop"))
    await x.chunk(x.ending())
    await x.raw(b"0\r\n\r\n")


async def empty(x: Exchange) -> None:
    await x.head()
    await x.chunk(x.event("", tokens=0, finish="stop"))
    await x.chunk(x.ending())
    await x.raw(b"0\r\n\r\n")


async def no_events(x: Exchange) -> None:
    await x.head()
    await x.raw(b"0\r\n\r\n")


async def role_first(x: Exchange) -> None:
    """An empty chunk at once, the first content 150 ms later."""
    await x.head()
    await x.chunk(x.event("", tokens=0))
    await asyncio.sleep(0.15)
    for event in x.events():
        await x.chunk(event)
    await x.raw(b"0\r\n\r\n")


async def four_tokens(x: Exchange) -> None:
    """Four tokens a chunk, 30 ms apart, as with speculative decoding."""
    await x.head()
    for n in range(4):
        if n:
            await asyncio.sleep(0.03)
        await x.chunk(x.event(" ".join(WORDS[:4]), tokens=4, finish="length" if n == 3 else None))
    await x.chunk(x.ending())
    await x.raw(b"0\r\n\r\n")


async def bytewise(x: Exchange) -> None:
    """One byte a segment."""
    for byte in x.chunked():
        await x.raw(bytes([byte]))
        await asyncio.sleep(0)


async def crlf(x: Exchange) -> None:
    """CRLF line ends, a comment, an interim response, chunk extensions and a trailer."""
    await x.raw(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + x.chunked("\r\n", b"X-Trailer: 1\r\n\r\n"))


async def one_write(x: Exchange) -> None:
    await x.raw(x.chunked())


async def until_close(x: Exchange) -> None:
    await x.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(x.events()))
    x.writer.close()


async def until_done(x: Exchange) -> None:
    """No framing, and the connection stays open after [DONE]."""
    await x.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(x.events()))


async def not_streamed(x: Exchange) -> None:
    x.sent = len(WORDS)
    content = {"message": {"content": "".join(WORDS)}} if x.chat else {"text": "".join(WORDS)}
    await x.whole(json.dumps({"choices": [{**content, "finish_reason": "stop"}], "usage": x.usage()}).encode())


async def no_ending(x: Exchange) -> None:
    """Well framed, but neither [DONE] nor a finish reason."""
    await x.some()
    await x.raw(b"0\r\n\r\n")


async def loops(x: Exchange) -> None:
    await x.head()
    for n in range(20):
        await x.chunk(x.event("again and ", finish="length" if n == 19 else None))
    await x.chunk(x.ending())
    await x.raw(b"0\r\n\r\n")


async def echo_token(x: Exchange) -> None:
    await x.whole(
        json.dumps({"error": {"message": f"bad header {x.token}"}}).encode(), status="500 Internal Server Error"
    )


async def not_found(x: Exchange) -> None:
    await x.whole(b'{"error": {"message": "no such model"}}', status="404 Not Found")


FAULTS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    handler.__name__: handler
    for handler in (
        *(
            ok,
            hang,
            hang_midway,
            reset_midway,
            close_midway,
            close_unanswered,
            close_after,
            malformed_event,
            malformed_chunk,
        ),
        *(
            not_http,
            html,
            html_as_json,
            http_429,
            http_503,
            error_event,
            no_usage,
            no_continuous,
            no_stream_options,
            always_400,
        ),
        *(final_usage, empty, no_events, role_first, four_tokens, bytewise, crlf, one_write, until_close, until_done),
        *(not_streamed, no_ending, loops, echo_token, retry_after, fails_at_second_turn),
    )
}


class Broken:
    """Reads requests off connections and hands them to the fault they name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seen: list[dict] = []

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self.request(reader, writer)
        writer.close()

    async def request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path = first.split(" ")[1]
        body = json.loads(await reader.readexactly(int(fields.get("content-length", 0))) or b"{}")
        exchange = Exchange(writer, body, "/chat/" in path)
        exchange.token = fields.get("authorization", "").removeprefix("Bearer ")
        if self.options.token and exchange.token != self.options.token:
            await exchange.whole(b'{"error": {"message": "who are you"}}', status="401 Unauthorized")
        elif path == "/v1/models":
            await exchange.whole(json.dumps({"data": [{"id": name} for name in FAULTS]}).encode())
        elif path == "/seen":
            await exchange.whole(json.dumps(self.seen).encode())
        else:
            await self.answer(exchange)

    async def answer(self, exchange: Exchange) -> None:
        self.seen.append(exchange.body)
        if self.options.die_after and len(self.seen) >= self.options.die_after:
            await exchange.some()
            os._exit(9)
        await FAULTS.get(exchange.body.get("model"), not_found)(exchange)


async def serve(options: argparse.Namespace) -> None:
    context = None
    if options.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.cert, options.key)
    server = await asyncio.start_server(Broken(options).connection, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--token")
    parser.add_argument("--die-after", type=int)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
