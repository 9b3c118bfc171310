"""A gateway on a loopback port, in a thread of the test's process, and a client that sees each HTTP chunk."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from backend.gateway.gateway import Gateway, ReadKeysAndServers
from backend.gateway.keys import ClientKey, digest
from backend.gateway.options import GatewayOptions
from backend.gateway.request_log import RequestLog
from backend.gateway.routes import Upstream
from backend.gateway.server import GatewayServer, listen

WAIT_S = 90.0
"""Longer than an engine takes for a short answer beside other tests on two slow cores."""
TOKEN = "sk-whetstone-of-a-test"
MODEL = "starter"
CHAT = "/v1/chat/completions"


def client_key(name: str = "app", token: str = TOKEN, limit: int | None = None) -> ClientKey:
    return ClientKey(name=name, digest=digest(token), requests_per_minute=limit)


def upstream_at(base: str, **changes: Any) -> Upstream:
    """Return the server at that address as one that serves MODEL."""
    fields = {"name": MODEL, "source": "a-123", "served_name": MODEL, "base": base, "key": "own", "job": "j-1"}
    return Upstream(**(fields | changes))


@dataclass
class RunningGateway:
    """The gateway, and what its log and metrics hold."""

    port: int
    gateway: Gateway
    server: GatewayServer
    thread: threading.Thread
    log: RequestLog
    log_path: Path
    sentences: list[str]
    log_is_closed: bool = False

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the request log, once the gateway has stopped and all are written."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.gateway.metrics.registry.get_sample_value(f"whetstone_gateway_{name}", labels)

    def stop(self) -> None:
        """Stop as SIGTERM does, and wait for the end and for the last line of the log."""
        self.server.should_exit = True
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the gateway did not stop"
        if not self.log_is_closed:
            self.log.close()
            self.log_is_closed = True


@contextmanager
def running_gateway(
    upstreams: Sequence[Upstream],
    folder: Path,
    keys: Sequence[ClientKey] = (),
    *,
    loopback_only: bool = True,
    read: ReadKeysAndServers | None = None,
    **options: Any,
) -> Iterator[RunningGateway]:
    """The gateway while it runs; its log is in `folder`. `read` takes the place of both lists."""
    log_path, sentences = folder / "gateway.log", list[str]()
    chosen = GatewayOptions(log_path=log_path, **options)
    log = RequestLog(log_path, with_content=chosen.log_content)
    gateway = Gateway(read or (lambda: (keys, upstreams)), chosen, log, loopback_only=loopback_only)
    listening = listen("127.0.0.1", 0)
    server = GatewayServer(gateway, sentences.append)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    running = RunningGateway(listening.getsockname()[1], gateway, server, thread, log, log_path, sentences)
    try:
        yield running
    finally:
        running.stop()


@dataclass
class Reply:
    """An answer as it came: `chunks` are its HTTP chunks, or its body as one; `is_whole` is False for one that was cut
    off."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    is_whole: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error of an answer in OpenAI's form."""
        return dict(json.loads(self.body)["error"])


class Connection:
    """A client's connection to 127.0.0.1:`port`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._file = self._socket.makefile("rb")

    def send(
        self, path: str = CHAT, body: bytes | dict[str, Any] | None = None, *, method: str = "POST", **headers: str
    ) -> None:
        """Send a request; by default one for MODEL with the key of `client_key`."""
        content = (
            body if isinstance(body, bytes) else json.dumps({"model": MODEL, "stream": True} | (body or {})).encode()
        )
        fields = {"host": "localhost", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        fields |= {"content-length": str(len(content))} if method == "POST" else {}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        self._socket.sendall(
            f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (content if method == "POST" else b"")
        )

    def read_head(self) -> tuple[int, dict[str, str]]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        return status, headers

    def read_chunk(self) -> bytes | None:
        """Return the next HTTP chunk, b"" at the end; None where the connection was cut before it."""
        size = self._file.readline().strip()
        if not size:
            return None
        data = self._file.read(int(size, 16))
        self._file.readline()
        return data

    def read_reply(self) -> Reply:
        status, headers = self.read_head()
        if "content-length" in headers:
            length = int(headers["content-length"])
            body = self._file.read(length)
            return Reply(status, headers, [body], len(body) == length)
        chunks = []
        while chunk := self.read_chunk():
            chunks.append(chunk)
        return Reply(status, headers, chunks, chunk is not None)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def ask(port: int, path: str = CHAT, body: bytes | dict[str, Any] | None = None, **options: Any) -> Reply:
    """Send one request, and return its answer."""
    with closing(Connection(port)) as connection:
        connection.send(path, body, **options)
        return connection.read_reply()


def require_ok(reply: Reply) -> Reply:
    assert reply.status == HTTPStatus.OK and reply.is_whole, reply
    return reply
