"""The AWS Pricing API on loopback, as botocore's service model describes it: `python tests/fakes/pricing.py` prints its
port.

POST / with `X-Amz-Target: AWSPriceListService.GetProducts` answers pages of products, each a JSON document as text,
filtered by TERM_MATCH on their attributes. A request that is not signed for `pricing` is refused.

For tests only: PUT /-/products with a JSON list sets what there is, a text or a document each; PUT /-/fault with
{"code", "status", "times"} refuses the next requests; GET /-/log is what was asked since the last PUT.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TARGET = "AWSPriceListService.GetProducts"
FIELDS = frozenset({"regionCode", "component", "instanceName", "servicecode", "location", "locationType"})
PAGE = 100


class State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.products: list[str] = []
        self.fault: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = State()

    def log_message(self, *_: Any) -> None:
        """Nothing: the first line of the output is the port."""

    def do_GET(self) -> None:
        self.json(200, self.state.log)

    def do_PUT(self) -> None:
        document = self.body()
        with self.state.lock:
            self.state.log = []
            if self.path == "/-/products":
                self.state.fault = {}
                self.state.products = [one if isinstance(one, str) else json.dumps(one) for one in document]
            else:
                self.state.fault = document
        self.json(200, {})

    def do_POST(self) -> None:
        request, reported = self.body(), self.headers.get("Authorization") or ""
        with self.state.lock:
            self.state.log.append(
                {"asked": request, "authorization": reported, "target": self.headers.get("X-Amz-Target")}
            )
            fault = self.state.fault if self.state.fault.get("times", 0) > 0 else None
            if fault:
                fault["times"] -= 1
        if fault:
            self.refuse(fault["status"], fault["code"])
        elif "/pricing/aws4_request" not in reported:
            self.refuse(400, "AccessDeniedException")
        elif self.headers.get("X-Amz-Target") != TARGET or request.get("ServiceCode") != "AmazonSageMaker":
            self.refuse(400, "InvalidParameterException")
        else:
            self.products(request)

    def products(self, values: dict[str, Any]) -> None:
        filters = {one["Field"]: one["Value"] for one in values.get("Filters", []) if one["Type"] == "TERM_MATCH"}
        if not FIELDS.issuperset(filters):
            self.refuse(400, "InvalidParameterException")
            return
        chosen = [text for text in self.state.products if matches(text, filters)]
        first, size = int(values.get("NextToken") or 0), min(values.get("MaxResults", PAGE), PAGE)
        document: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": chosen[first : first + size]}
        if first + size < len(chosen):
            document["NextToken"] = str(first + size)
        self.json(200, document)

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")

    def refuse(self, status: int, code: str) -> None:
        self.json(status, {"__type": code, "Message": "as told"})

    def json(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def matches(text: str, filters: dict[str, str]) -> bool:
    """A damaged product is served whatever is asked."""
    try:
        attributes = json.loads(text)["product"]["attributes"]
    except (ValueError, KeyError, TypeError):
        return True
    return all(attributes.get(field) == value for field, value in filters.items())


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
