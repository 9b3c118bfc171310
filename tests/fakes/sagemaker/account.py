"""What the fake AWS account holds and how its operations are registered.

A module adds operations with `@operation("sagemaker", "CreateOptimizationJob")`: the request's parameters in, the
answer's out, both checked against botocore's service model (`shapes.py`). What is REST (`sagemaker-runtime`) is a
`@route`. What only a test does (end a job, let a probe fail) is a `@lever`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

ACCOUNT_ID, REGION = "123456789012", "us-east-1"
BEGINNING = 1_795_000_000.0
"""Seconds since the epoch at which a clock starts."""


class Refused(Exception):
    """An answer that is an error, as the service's model names it."""

    def __init__(
        self, code: str, message: str = "as the test asked", status: int = 400, document: dict[str, Any] | None = None
    ) -> None:
        """`document`: what the answer says besides."""
        super().__init__(message)
        self.code, self.message, self.status, self.document = code, message, status, document or {}


class Cut(Exception):
    """Out of the chunks of an answer: the connection closes there."""


class Clock:
    """Stands still until a test advances it, unless it has a speed (seconds of the account in one of this machine)."""

    def __init__(self) -> None:
        self._at, self._since, self._speed = BEGINNING, time.monotonic(), 0.0

    @property
    def now(self) -> float:
        return self._at + (time.monotonic() - self._since) * self._speed

    def advance(self, seconds: float) -> None:
        self._at += seconds

    def run(self, speed: float) -> None:
        self._at, self._since, self._speed = self.now, time.monotonic(), speed


@dataclass
class Fault:
    """Of the next `times` requests for `operation` ("*": any) after `after` of them.

    `do`: an error's code, a status from 500 on, "cut" (half of the answer's body), "drop" (no answer, nothing done) or
    "lost" (done, and no answer).
    """

    do: str | int
    operation: str = "*"
    times: int = 1
    after: int = 0
    message: str = "as the test asked"


@dataclass
class LoggedRequest:
    """One request as it arrived: when by the account's clock, and the answer's status or what a fault did."""

    at: float
    operation: str
    parameters: dict[str, Any]
    answer: str | int = 200


@dataclass
class Account:
    clock: Clock = field(default_factory=Clock)
    tables: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    """What operations keep, by the name that a module chooses."""
    faults: list[Fault] = field(default_factory=list)
    log: list[LoggedRequest] = field(default_factory=list)
    late_s: float = 0.0
    """Lists lack for so long what was made."""
    choose: Callable[[str], str | int | None] | None = None
    """Besides `faults`, for tests in this process: what to do with a request for that operation."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fault(self, operation: str) -> Fault | None:
        """What happens to this request instead."""
        for fault in self.faults:
            if fault.operation not in {"*", operation}:
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self.faults.remove(fault)
            return fault
        do = self.choose(operation) if self.choose else None
        return None if do is None else Fault(do)

    def requests_for(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of every request for it, those that failed too."""
        return [each.parameters for each in self.log if each.operation == operation]

    def arn(self, kind: str, name: str, service: str = "sagemaker") -> str:
        return f"arn:aws:{service}:{REGION}:{ACCOUNT_ID}:{kind}/{name}"


Operation = Callable[[Account, dict[str, Any]], dict[str, Any] | None]
Route = Callable[[Account, "Request"], "Response"]
Lever = Callable[[Account, dict[str, Any]], Any]

OPERATIONS: dict[tuple[str, str], Operation] = {}
"""By botocore's name of the service and of the operation."""
ROUTES: list[tuple[str, str, str, Route]] = []
"""Name, method, pattern of the path, what answers."""
LEVERS: dict[str, Lever] = {}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    found: dict[str, str]
    """The named groups of the route's pattern."""


@dataclass
class Response:
    """`chunks`, where given, are sent one after the other in chunked encoding."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] | None = None


def operation(service: str, name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS[service, name] = function
        return function

    return register


def route(name: str, method: str, pattern: str) -> Callable[[Route], Route]:
    """`name` is what faults and the log call it."""

    def register(function: Route) -> Route:
        ROUTES.append((name, method, pattern, function))
        return function

    return register


def lever(name: str) -> Callable[[Lever], Lever]:
    def register(function: Lever) -> Lever:
        LEVERS[name] = function
        return function

    return register
