"""A proxy that breaks what passes: `python tests/fakes/faulty.py URL` prints its port and serves until it is killed.

POST /faults with a JSON list: each entry is for one later request, in order, or for as many as its `times`. `{"method":
"PUT", "has": "partNumber=2", "do": 503}` answers that status; `do` may also be "drop" (the connection ends before an
answer), "lost" (the request is passed on, its answer is dropped), "cut" (half of the answer's body) and "flip" (one bit
of it). GET /seen: the requests so far, as [method, path, bytes].
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

BODIES = {
    500: "<Error><Code>InternalError</Code><Message>m</Message></Error>",
    503: "<Error><Code>SlowDown</Code><Message>m</Message></Error>",
}
PASSED = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Faults:
    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str, int]] = []
        self.lock = threading.Lock()

    def next_fault(self, method: str, path: str, size: int) -> Any:
        with self.lock:
            self.seen.append((method, path, size))
            for fault in self.waiting:
                if fault.get("method", method) == method and fault.get("has", "") in path:
                    fault["times"] = fault.get("times", 1) - 1
                    if fault["times"] <= 0:
                        self.waiting.remove(fault)
                    return fault["do"]
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str
    faults: Faults

    def log_message(self, *_: object) -> None:
        pass

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/faults":
            self.faults.waiting = json.loads(body)
            return self._answer(200, {}, b"[]")
        if self.path == "/seen":
            return self._answer(200, {}, json.dumps(self.faults.seen).encode())
        do = self.faults.next_fault(self.command, self.path, len(body))
        if do == "drop":
            return self._end()
        if isinstance(do, int):
            return self._answer(do, {"Content-Type": "application/xml"}, BODIES[do].encode())
        status, headers, content = self._forward(body)
        if do == "lost":
            return self._end()
        if do == "cut" and len(content) > 1:
            self._answer(status, headers, content[: len(content) // 2], length=len(content))
            return self._end()
        if do == "flip" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        return self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.target, timeout=60)
        headers = dict(self.headers.items()) | {"Connection": "close"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        by_name = {name: value for name, value in answer.getheaders() if name.lower() not in PASSED}
        if self.command == "HEAD":
            by_name["Content-Length"] = answer.getheader("Content-Length") or "0"
        connection.close()
        return answer.status, by_name, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def _end(self) -> None:
        self.close_connection = True
        self.wfile.flush()


def main() -> None:
    Handler.target, Handler.faults = urlsplit(sys.argv[1]).netloc, Faults()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
