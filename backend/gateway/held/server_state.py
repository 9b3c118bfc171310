"""The state of a server that comes and goes: who uses it and who waits for it. Any thread may ask; each answer is one
step.

Two sides share a state: the requests, which use the server or wait for it, and its owner, who loads and unloads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from backend.gateway.refusals import Refusal, try_later
from backend.gateway.routes import Upstream

MOST_HELD = 256
"""Requests that wait at one time; further ones are told to come later."""
SETTLED_S = 10.0
"""Seconds for which a server stays once it is loaded, whoever else wants its memory, so that two of them do not take
turns with every request."""
RETRY_S = 5.0
Wake = Callable[[Refusal | None], None]
"""Told that there is a server now, or gone, or why there will be none."""


class Counts(NamedTuple):
    """Requests since the start: all that were admitted, and those that failed here or at the server."""

    requests: int = 0
    failed: int = 0


class ServerState:
    """The state of one server. `keep_loaded`: it is never taken away for another's sake. `now` is monotonic, in
    seconds."""

    def __init__(self, *, keep_loaded: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self.attention = threading.Event()
        """Set when the owner has something to do: a request waits, the server is gone, or it is to be unloaded."""
        self.counts = Counts()
        self._keep_loaded, self._now = keep_loaded, now
        self._lock = threading.Lock()
        self._upstream: Upstream | None = None
        self._refusal: Refusal | None = None
        self._in_flight = 0
        self._since = self._idle_since = now()
        self._is_leaving = False
        self._waiting: set[Wake] = set()
        self._watching: set[Wake] = set()
        """Told once the server that leaves is gone."""

    # The side of the requests.

    def enter(self, wake: Wake) -> Upstream | None:
        """Return the server and count a request that uses it; without one, have `wake` called once there is, or once it
        is known that there will be none. `leave` ends both. Raises Refusal (503)."""
        with self._lock:
            if self._upstream is not None:
                self._in_flight += 1
                return self._upstream
            if self._refusal is not None:
                raise self._refusal
            if len(self._waiting) >= MOST_HELD:
                sentence = f"{MOST_HELD} requests wait for the server already: try again in {RETRY_S:.0f} s."
                raise try_later(sentence, kind="too_many_waiting", after_s=RETRY_S)
            self._waiting.add(wake)
            self.attention.set()
            return None

    def withdraw(self, wake: Wake) -> None:
        """End the wait of a request whose client left."""
        with self._lock:
            self._waiting.discard(wake)

    def leave(self) -> None:
        """End a request that used the server."""
        with self._lock:
            self._in_flight -= 1
            self._idle_since = self._now()

    def report_gone(self, upstream: Upstream) -> None:
        """Say that this server takes no connection."""
        with self._lock:
            if self._upstream == upstream:
                self._upstream = None
                self.attention.set()

    def count(self, *, failed: bool) -> None:
        """Count a request that ended."""
        self.counts = Counts(self.counts.requests + 1, self.counts.failed + failed)

    # The side of the owner.

    @property
    def waiting(self) -> int:
        """Return how many requests wait for the server."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_loaded(self) -> bool:
        return self._upstream is not None

    @property
    def is_leaving(self) -> bool:
        """Tell whether the server is to be unloaded: no request uses it, and none gets it any more."""
        return self._is_leaving

    @property
    def idle_s(self) -> float:
        """Return the seconds since the last request ended, or since the server was loaded; 0 while one runs."""
        return 0.0 if self._in_flight else self._now() - max(self._idle_since, self._since)

    def begin(self) -> None:
        """Say that the server is being loaded: requests wait for it, whatever they were told before."""
        with self._lock:
            self._refusal = None

    def lend(self, upstream: Upstream) -> None:
        """Give the server to all requests that wait and that come."""
        with self._lock:
            self._upstream, self._refusal, self._since = upstream, None, self._now()
            wakes = self._take_waiting()
        _call(wakes)

    def refuse(self, refusal: Refusal, *, lasting: bool = False) -> None:
        """Refuse all requests that wait, and with `lasting` all that come until the next `begin`."""
        with self._lock:
            self._refusal = refusal if lasting else self._refusal
            wakes = self._take_waiting()
        _call(wakes, refusal)

    def take_back(self, idle_s: float = 0.0) -> bool:
        """Take the server out of use if no request uses it and none did for `idle_s` seconds. Return whether it is."""
        with self._lock:
            if self._upstream is None or self._in_flight or self.idle_s < idle_s:
                return False
            self._upstream = None
            return True

    def unload_for_other(self, wake: Wake) -> bool:
        """Have the server unloaded for another's sake, and `wake` called then; False where that may not be now."""
        with self._lock:
            settled = self._now() - self._since >= SETTLED_S
            if self._keep_loaded or self._in_flight or not settled or (self._upstream is None and not self._is_leaving):
                return False
            self._upstream, self._is_leaving = None, True
            self._watching.add(wake)
            self.attention.set()
            return True

    @property
    def may_leave(self) -> bool:
        """Tell whether another may have its memory now."""
        settled = self._now() - self._since >= SETTLED_S
        return not self._keep_loaded and settled and self._upstream is not None and not self._in_flight

    def is_gone(self) -> None:
        """Say that the server has ended and its memory is free."""
        with self._lock:
            self._upstream, self._is_leaving = None, False
            wakes, self._watching = list(self._watching), set()
        _call(wakes)

    def _take_waiting(self) -> list[Wake]:
        wakes, self._waiting = list(self._waiting), set()
        return wakes


def _call(wakes: list[Wake], refusal: Refusal | None = None) -> None:
    for wake in wakes:
        wake(refusal)
