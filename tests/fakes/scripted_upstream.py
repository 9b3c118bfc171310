"""An OpenAI-compatible server in a thread of the test's process, which answers as its test says, step by step.

Nothing waits by the clock: a step may be an event that the test sets, and `left` is set when a client has gone.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

WAIT_S = 90.0
"""The longest wait for an event or a client: a test that fails must end."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


class Step(Enum):
    """Steps that are no bytes."""

    STALL = "send nothing until the client leaves"
    DIE = "reset the connection"


Steps = Sequence[bytes | threading.Event | Step]


def event(document: dict[str, Any]) -> bytes:
    """Return an event of a stream."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def whole(document: dict[str, Any], status: str = "200 OK") -> list[bytes]:
    """Return the steps of an answer that is no stream."""
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


def stream(*chunks: bytes | threading.Event | Step) -> list[bytes | threading.Event | Step]:
    """Return the steps of a stream: each bytes is one HTTP chunk. A DIE or STALL leaves it without its end."""
    framed = [b"%x\r\n%s\r\n" % (len(chunk), chunk) if isinstance(chunk, bytes) else chunk for chunk in chunks]
    cut = any(isinstance(chunk, Step) for chunk in chunks)
    return [HEAD, *framed] if cut else [HEAD, *framed, b"0\r\n\r\n"]


@dataclass
class ReceivedRequest:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class ScriptedUpstream:
    """The server: `steps` answer every request; `requests` are those that came."""

    port: int
    steps: Steps = ()
    requests: list[ReceivedRequest] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """One for each request that came."""
    left: threading.Event = field(default_factory=threading.Event)
    """A client closed its connection while an answer stalled."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def await_request(self) -> None:
        """Wait until another request has come."""
        assert self.arrived.acquire(timeout=WAIT_S), "no request came"


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    upstream: ScriptedUpstream

    def handle(self) -> None:
        self.connection.settimeout(WAIT_S)
        while request := self._read():
            self.upstream.requests.append(request)
            self.upstream.arrived.release()
            for step in self.upstream.steps:
                if not self._take(step):
                    return

    def _read(self) -> ReceivedRequest | None:
        try:
            first = self.rfile.readline()
        except OSError:
            return None
        if not first:
            return None
        headers = {}
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode("latin-1")
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return ReceivedRequest(first.split()[1].decode(), headers, body)

    def _take(self, step: bytes | threading.Event | Step) -> bool:
        """Take a step. Return whether the connection goes on."""
        if isinstance(step, bytes):
            self.connection.sendall(step)
        elif isinstance(step, threading.Event):
            return step.wait(WAIT_S)
        elif step is Step.STALL:
            try:
                has_left = self.connection.recv(1) == b""
            except ConnectionError:
                has_left = True
            if has_left:
                self.upstream.left.set()
            return False
        else:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # close() then resets
            return False
        return True


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no failure of the server."""


@contextmanager
def scripted_upstream(steps: Steps = ()) -> Iterator[ScriptedUpstream]:
    """The server while it runs."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        upstream = ScriptedUpstream(server.server_address[1], steps)
        handler.upstream = upstream  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join(WAIT_S)
