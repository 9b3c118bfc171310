"""The account's HTTP end, in this process (`serving`) or in one of its own (`python -m tests.fakes.sagemaker` prints
its port).

A request is AWS JSON (X-Amz-Target) or one of the routes, signed for its service. For tests only: POST /-/NAME pulls a
lever; `clock` {"advance": s} or {"speed": x}, `faults` [{...}], `reset` and `log` are always there. `Levers` is the
other end of that.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any

from tests.fakes.sagemaker import cbor, cloudwatch, endpoints, optimization, runtime, shapes
from tests.fakes.sagemaker.account import (
    LEVERS,
    OPERATIONS,
    ROUTES,
    Account,
    Cut,
    Fault,
    LoggedRequest,
    Refused,
    Request,
    Response,
    lever,
)

MODULES = (cloudwatch, endpoints, optimization, runtime)
"""Every module with operations: importing it registers them."""
SIGNED = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/(?P<service>[^/]+)/aws4_request")
JSON = {"Content-Type": "application/x-amz-json-1.1"}
STATUS = {"ModelNotReadyException": 429, "ServiceUnavailable": 503, "InternalFailure": 500}
"""Of errors that have another than 400."""
CUT_AFTER = 2
"""Chunks, of an answer in chunks that a fault cuts."""


@lever("clock")
def clock(account: Account, settings: dict[str, Any]) -> float:
    if "speed" in settings:
        account.clock.run(settings["speed"])
    account.clock.advance(settings.get("advance", 0))
    return account.clock.now


@lever("faults")
def faults(account: Account, rows: Any) -> None:
    """In place of those that were left."""
    account.faults[:] = [Fault(**each) for each in rows]


@lever("reset")
def reset(account: Account, _: Any) -> None:
    for remaining in (account.faults, account.log, account.tables):
        remaining.clear()


@lever("log")
def log(account: Account, _: Any) -> list[dict[str, Any]]:
    return [asdict(each) for each in account.log]


def _json(document: Any) -> Response:
    return Response(json.dumps(document, default=datetime.timestamp).encode(), headers=JSON)


def _cbor(document: Any) -> Response:
    return Response(cbor.write(document), headers=cbor.HEADERS)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    account: Account
    write: Callable[[Any], Response] = staticmethod(_json)
    """As the protocol has it in which the request came."""

    def log_message(self, *_: Any) -> None:
        """Nothing: the first line of the output is the port."""

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/-/"):
            with self.account.lock:
                answer = LEVERS[self.path.removeprefix("/-/")](self.account, json.loads(body or b"null"))
            self._send(_json(answer))
        elif (target := self.headers.get("X-Amz-Target")) is not None:
            self._operation(*target.split(".", 1), json.loads(body))
        elif (called := cbor.PATH.fullmatch(self.path)) is not None:
            self.write = _cbor
            self._operation(called["prefix"], called["name"], cbor.read(body))
            self.write = _json
        else:
            self._route(body)

    do_GET = do_POST = do_PUT = do_DELETE = _any

    def _operation(self, prefix: str, name: str, parameters: dict[str, Any]) -> None:
        service = shapes.by_target(prefix)
        with self.account.lock:
            self._answered(name, parameters, lambda: self._called(service, name, parameters))

    def _called(self, service: str | None, name: str, parameters: dict[str, Any]) -> Response:
        signed = SIGNED.search(self.headers.get("Authorization") or "")
        if service is None or (service, name) not in OPERATIONS:
            raise Refused("UnknownOperationException", f"the fake has no {service} {name}")
        if signed is None or signed["service"] != shapes.signing_name(service):
            raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")
        model = shapes.model(service, name)
        shapes.check(parameters, model.input_shape)
        answer = OPERATIONS[service, name](self.account, parameters) or {}
        document = shapes.answer(answer, model.output_shape) if model.output_shape else {}
        return self.write(document)

    def _route(self, body: bytes) -> None:
        for name, method, pattern, function in ROUTES:
            match = re.fullmatch(pattern, self.path)
            if match and method == self.command:
                request = Request(method, self.path, dict(self.headers.items()), body, match.groupdict())
                self._answered(name, {"path": self.path, **match.groupdict()}, partial(function, self.account, request))
                return
        self._send(self._refusal(Refused("NotFound", f"{self.command} {self.path}", 404)))

    def _answered(self, name: str, parameters: dict[str, Any], act: Any) -> None:
        """Do it, unless a fault says otherwise."""
        request, fault = LoggedRequest(self.account.clock.now, name, parameters), self.account.fault(name)
        self.account.log.append(request)
        if fault is not None:
            request.answer = fault.do
        if fault is not None and fault.do not in {"cut", "lost"}:
            self._fail(fault)
            return
        try:
            answer = act()
        except Refused as error:
            request.answer, answer = error.code, self._refusal(error)
        if fault is not None and fault.do == "lost":
            self.close_connection = True
            return
        self._send(answer, cut=fault is not None)

    def _fail(self, fault: Fault) -> None:
        if fault.do == "drop":
            self.close_connection = True
        elif isinstance(fault.do, int):
            self._send(Response(b"<html>upstream</html>", fault.do, {"Content-Type": "text/html"}))
        else:
            self._send(self._refusal(Refused(fault.do, fault.message, STATUS.get(fault.do, 400))))

    def _refusal(self, error: Refused) -> Response:
        answer = self.write({"__type": error.code, "message": error.message, **error.document})
        answer.status, answer.headers = error.status, {**answer.headers, "x-amzn-ErrorType": error.code}
        return answer

    def _send(self, answer: Response, *, cut: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.chunks is None:
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            cut = self._send_chunks(islice(answer.chunks, CUT_AFTER) if cut else answer.chunks) or cut
            if not cut:
                self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.close_connection or cut

    def _send_chunks(self, chunks: Iterable[bytes]) -> bool:
        """Whether the answer ends there, in the middle."""
        try:
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
        except (Cut, ConnectionError):
            return True
        return False


@contextmanager
def serving(account: Account) -> Iterator[str]:
    """`http://127.0.0.1:PORT` of that account while the block runs, by threads of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"account": account}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Levers:
    """What tests do with an account in another process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def pull(self, name: str, required: Any = None) -> Any:
        request = urllib.request.Request(f"{self.url}/-/{name}", data=json.dumps(required).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def requests_for(self, operation: str) -> list[dict[str, Any]]:
        return [each["parameters"] for each in self.pull("log") if each["operation"] == operation]
