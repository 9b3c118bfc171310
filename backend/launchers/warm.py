"""Workers forked from a template that has imported already what every worker imports (`backend.worker.warm`).

A convenience that may fail: where the template does not answer, `start` says so, nothing of that worker runs or will
run, and the launcher starts it cold.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, BinaryIO, NamedTuple

from backend import processes
from backend.domain.jobs.jobs import Outcome

MODULE = "backend.worker.warm"
MESSAGE_BYTES = 4096
READY_S = 5.0
"""How long a start waits for a template that still imports, which a cold worker would have to do as well."""
ANSWER_S = 5.0
MOST_DEATHS = 3
"""A template that ended so often before it was ready is given up."""


class Worker(NamedTuple):
    """`started`: as `processes.started`."""

    pid: int
    started: str


class Template:
    """One process at a time. Not to be shared between threads."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._command, self._environment = [python, "-m", MODULE], dict(environment)
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready, self._deaths, self._numbers = False, 0, count()
        self._answers: dict[int, dict[str, Any]] = {}
        self._alive: dict[int, Worker] = {}
        self._codes: dict[Worker, int] = {}

    def begin(self) -> None:
        """Start it, where it does not run and was not given up; it imports while this process goes on."""
        if self._socket is not None or self._deaths >= MOST_DEATHS:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    self._command, stdin=theirs.fileno(), start_new_session=True, env=self._environment
                )
        except OSError:
            self._deaths = MOST_DEATHS
            ours.close()
        else:
            self._socket = ours

    def start(self, address: str, mark: tuple[str, str], log: BinaryIO) -> Worker | None:
        """A new worker on that channel, or None where there will be none. `mark`: a variable of its environment, in
        its place before the worker works."""
        self.begin()
        if not self._until(lambda: self._ready, READY_S) or self._socket is None:
            return None
        number, (reading, writing) = next(self._numbers), os.pipe()
        asked = json.dumps({"number": number, "address": address, "mark": mark}).encode()
        try:
            socket.send_fds(self._socket, [asked], [log.fileno(), reading])
            self._until(lambda: number in self._answers, ANSWER_S)
            answer = self._answers.pop(number, {})
            if "pid" not in answer:
                return None
            worker = Worker(answer["pid"], answer["started"])
            self._alive[worker.pid] = worker
            os.write(writing, b"1")
            return worker
        except OSError:
            self._gone()
            return None
        finally:
            os.close(reading)
            os.close(writing)

    def look(self, worker: Worker) -> Outcome | None:
        """How a worker of this template is, with its exit code once; None of one that it does not know."""
        self._listen(0.0)
        if self._alive.get(worker.pid) == worker:
            if processes.running(*worker) is not None:
                return Outcome(alive=True)
            # It has ended, which the template is about to say, with the code.
            self._until(lambda: worker.pid not in self._alive, ANSWER_S)
        code = self._codes.pop(worker, None)
        return None if code is None else Outcome(alive=False, code=code)

    def close(self) -> None:
        """The template ends; its workers go on."""
        self._gone()
        if self._process is not None:
            self._process.wait()

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and self._socket is not None and (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        return condition()

    def _listen(self, seconds: float) -> None:
        """Take in what it said, waiting so long for the first word."""
        while self._socket is not None and _speaks(self._socket, seconds):
            seconds = 0.0
            try:
                message = self._socket.recv(MESSAGE_BYTES)
            except OSError:
                message = b""
            if not message:
                self._gone()
                return
            self._heard(json.loads(message))

    def _heard(self, said: dict[str, Any]) -> None:
        if "ready" in said:
            self._ready, self._deaths = True, 0
        elif "number" in said:
            self._answers[said["number"]] = said
        else:
            worker = self._alive.pop(said["ended"], None)
            if worker is not None:
                self._codes[worker] = said["code"]

    def _gone(self) -> None:
        """Its workers are looked for by their pids from now on, and the next start begins another one."""
        if self._socket is not None:
            self._socket.close()
        if not self._ready:
            self._deaths += 1
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0)
        self._socket, self._ready = None, False
        self._answers, self._alive = {}, {}


def _speaks(end: socket.socket, seconds: float) -> bool:
    """Whether something can be read there within that time, its end included. `select` knows no descriptor above
    1,023."""
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))
