"""A small OpenAI-compatible server for looking at answers: one model, an answer of `max_tokens` words after --ttft-ms.

A process of its own: `python tests/fakes/plain_server.py --word w` prints its port, then serves until it is killed.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPTIONS = argparse.Namespace(word="w", ttft_ms=0.0, refuse=None, no_chat=None)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: the first line of the output is the port."""

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self.whole(200 if known else 404, {"data": [{"id": "plain"}]} if known else {"error": "no such path"})

    def whole(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        parsed = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if words := OPTIONS.refuse or ("/chat/" in self.path and OPTIONS.no_chat):
            self.whole(400, {"error": {"message": words}})
            return
        self.send_response(200)
        self.end_headers()
        for number in range(parsed["max_tokens"]):
            threading.Event().wait(OPTIONS.ttft_ms / 1000 if number == 0 else 0.002)
            self.send({"choices": [{"text": f"{OPTIONS.word}{number} "}]})
        self.send({"choices": [], "usage": {"completion_tokens": parsed["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: %s\n\n" % json.dumps(document).encode())
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--word", default="w")
    parser.add_argument("--ttft-ms", type=float, default=10.0)
    parser.add_argument("--refuse", help="answer every question with HTTP 400 and these words")
    parser.add_argument("--no-chat", help="answer chats so")
    parser.parse_args(namespace=OPTIONS)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
