"""The studio's end of a bridge: starts one, starts it again when it is gone, and asks it. Any thread may ask."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from backend.domain.errors import WorkError
from backend.launchers.cluster.inside import wire

BRIDGE = Path(__file__).parent / "inside" / "bridge.py"
JOIN_S = 30.0
"""The longest that joining the cluster may take."""
AGAIN_S = 3.0
"""Between two tries to join it."""
SPARE_S = 5.0
"""Longer than the bridge itself waits for an answer of Ray."""
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LD_LIBRARY_PATH")
"""Variables that the bridge gets, beside Ray's own: no secret of the studio reaches a process that Ray records."""


class ClusterUnreachable(WorkError):
    """The cluster, or a keeper in it, does not answer. It says nothing of a worker."""


class ActorGone(WorkError):
    """Ray says that a keeper is not there. It is a hint."""


class CallFailed(WorkError):
    """A keeper's method raised: a full disk, a file that is not there."""


KINDS: dict[str, type[WorkError]] = {"away": ClusterUnreachable, "gone": ActorGone, "failed": CallFailed}


class Client:
    """A cluster at an address. `python` finds the ray environment's interpreter, and raises EngineMissing where there
    is none."""

    def __init__(self, address: str, python: Callable[[], Path], log: Path) -> None:
        self.address, self._python, self._log = address, python, log
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._pipe: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._refused = (-AGAIN_S, "it was not asked yet")

    def ask(self, operation: str, limit_s: float = 10.0, **arguments: Any) -> Any:
        """Send an operation to the bridge and return its answer. Raises ClusterUnreachable, ActorGone, CallFailed."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            pipe = self._open_bridge()
            self._waiting[number] = answer
            with suppress(OSError):  # the reader sees the same and ends what waits
                wire.send(pipe, number, operation, arguments)
        try:
            return answer.result(limit_s + SPARE_S)
        except Late:
            raise ClusterUnreachable(
                f"The Ray cluster at {self.address} does not answer within {limit_s + SPARE_S:.0f} s."
            ) from None
        finally:
            self._waiting.pop(number, None)

    def call(self, name: str, method: str, limit_s: float = 10.0, /, **arguments: Any) -> Any:
        """Call a method of the keeper of that name and return its answer. Raises ClusterUnreachable, ActorGone,
        CallFailed."""
        return self.ask("call", limit_s, name=name, method=method, arguments=arguments, patience_s=limit_s)

    def close(self) -> None:
        """End the bridge; requests that wait raise ClusterUnreachable."""
        with self._lock:
            pipe, process = self._pipe, self._process
            self._pipe = self._process = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.kill()
            process.wait()

    def _open_bridge(self) -> Connection:
        """Return the pipe of a bridge that is connected, started if needed. Raises ClusterUnreachable. The caller has
        the lock."""
        if self._pipe is not None:
            return self._pipe
        # 1. Do not ask a cluster again that refused a moment ago.
        since, why = self._refused
        if time.monotonic() - since < AGAIN_S:
            raise ClusterUnreachable(f"The Ray cluster at {self.address} does not answer ({why}).")
        # 2. Start the bridge with the few variables that it needs.
        ours, theirs = Pipe()
        with self._log.open("wb") as log:
            environment = {
                name: value for name, value in os.environ.items() if name in PASSED_VARIABLES or name.startswith("RAY_")
            }
            self._process = subprocess.Popen(
                [str(self._python()), str(BRIDGE), str(theirs.fileno()), self.address],
                pass_fds=[theirs.fileno()],
                env=environment | {"RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        theirs.close()
        # 3. Take its first message: connected, or why not.
        kind, value = self._first(ours)
        if kind != "value":
            self._refused = (time.monotonic(), str(value))
            self._process.kill()
            self._process.wait()
            raise ClusterUnreachable(f"The Ray cluster at {self.address} does not answer ({value}).")
        # 4. Read its answers in a thread from here on.
        self._pipe = ours
        threading.Thread(target=self._read, args=(ours,), daemon=True, name="ray").start()
        return ours

    def _first(self, pipe: Connection) -> tuple[str, Any]:
        try:
            if pipe.poll(JOIN_S):
                _, kind, value = wire.receive(pipe, 3)
                return kind, value
        except (EOFError, OSError, ValueError):
            return "away", f"the process that joins it ended; see {self._log}"
        return "away", f"not within {JOIN_S:.0f} s"

    def _read(self, pipe: Connection) -> None:
        with suppress(EOFError, OSError, ValueError):  # a bridge that writes what it should not is ended
            while True:
                number, kind, value = wire.receive(pipe, 3)
                answer = self._waiting.get(number) if isinstance(number, int) else None
                if answer is not None and kind == "value":
                    answer.set_result(value)
                elif answer is not None:
                    answer.set_exception(KINDS.get(str(kind), ClusterUnreachable)(str(value)))
        with self._lock:
            if self._pipe is pipe:
                self._pipe, process = None, self._process
                self._process, self._refused = None, (time.monotonic(), "the connection broke off")
                if process is not None:
                    process.kill()
                    process.wait()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(
                    ClusterUnreachable(f"The connection to the Ray cluster at {self.address} broke off.")
                )
