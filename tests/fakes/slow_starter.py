"""Stands for the interpreter of the serve environment: whatever it is asked to run, it is a server that takes a second
to answer.

Its log says when it began and when it answers, as seconds of the machine's clock. A model that is served as `broken`
never does.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STARTS_S = 1.0


def main(arguments: list[str]) -> None:
    name = next(each.partition("=")[2] for each in arguments if each.startswith("--served-model-name="))
    port = int(arguments[arguments.index("--port") + 1])
    print("began", time.monotonic(), flush=True)
    time.sleep(STARTS_S)
    if name == "broken":
        sys.exit("ValueError: broken")
    print("answers", time.monotonic(), flush=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"data": [{"id": name}]})

        def do_POST(self) -> None:
            self.answer({"choices": [{"text": "a"}]})

        def answer(self, document: dict[str, object]) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
