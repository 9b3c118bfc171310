"""Makes room in memory for an endpoint's server: others of this home that nobody uses are unloaded.

Each endpoint announces its port by an empty file in the home. One at a time decides, under a file lock, and says that
it loads before it lets go of the lock, so that two do not count on the same memory.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from backend import served_keys
from backend.domain.errors import NotEnoughMemory
from backend.domain.jobs.endpoint_memory import OtherEndpoint, choose_to_unload
from backend.gateway.held.held_gateway import SERVER, UNLOAD, ServerDocument
from backend.hardware import probe

FOLDER, LOCK, SUFFIX = "endpoints", "memory.lock", ".port"
ASK_S = 5.0
"""Seconds that another endpoint may take to say how it is."""
UNLOAD_S = 30.0
"""Seconds that another endpoint may take to unload its server."""
POLL_S = 0.25


class MemoryRoom:
    """The memory of a machine as the endpoints of one home share it."""

    def __init__(self, home: Path, port: int) -> None:
        self._folder, self._port = home / FOLDER, port
        self._folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Let the others find this endpoint meanwhile."""
        own = self._folder / f"{self._port}{SUFFIX}"
        own.touch()
        try:
            yield
        finally:
            own.unlink(missing_ok=True)

    def make_room(
        self, needed: int, wait_s: float, *, claim: Callable[[], None], report: Callable[[NotEnoughMemory], None]
    ) -> None:
        """Return once `needed` bytes are free; `claim` is called then, before another endpoint decides.

        Endpoints that nobody uses are unloaded for it, the longest idle first. `report` is called once, where it has to
        wait. Raises NotEnoughMemory after `wait_s` seconds.
        """
        deadline, has_reported = time.monotonic() + wait_s, False
        while True:
            shortage = self._try(needed, claim)
            if shortage is None:
                return
            if time.monotonic() > deadline:
                raise shortage
            if not has_reported:
                report(shortage)
                has_reported = True
            time.sleep(POLL_S)

    def _try(self, needed: int, claim: Callable[[], None]) -> NotEnoughMemory | None:
        """Make room, or return why there is none now."""
        with self._locked() as is_locked:
            if not is_locked:
                return NotEnoughMemory("Another endpoint decides about memory just now: try again in a moment.")
            others = self.list_others()
            chosen = choose_to_unload(needed, probe.free_memory(), others)
            if chosen is None:
                return _shortage(needed, others)
            # Unload the chosen ones, and see what that gave: one may be in use by now.
            for other in chosen:
                _unload(other.port)
            if chosen:
                others = self.list_others()
                chosen = choose_to_unload(needed, probe.free_memory(), others)
            if chosen or chosen is None:
                return _shortage(needed, others)
            claim()
            return None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        with (self._folder / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def list_others(self) -> list[OtherEndpoint]:
        """Return the other endpoints of this home that answer."""
        others = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            port = int(path.stem) if path.stem.isdigit() else self._port
            document = None if port == self._port else _ask(port, "GET", SERVER, ASK_S)
            if document is not None:
                read = ServerDocument.model_validate(document)
                others.append(
                    OtherEndpoint(
                        port=port,
                        memory_bytes=read.memory_bytes if read.is_loaded or read.is_loading else 0,
                        is_loading=read.is_loading,
                        may_leave=read.may_leave,
                        idle_s=read.idle_s,
                    )
                )
        return others


def _unload(port: int) -> bool:
    answer = _ask(port, "POST", UNLOAD, UNLOAD_S)
    return answer is not None and bool(answer.get("unloaded"))


def _ask(port: int, method: str, path: str, timeout_s: float) -> dict[str, Any] | None:
    """Return the answer of the endpoint at that port; None where it gives none, or refuses."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection.request(method, path, headers={"Authorization": f"Bearer {served_keys.find(port) or ''}"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        document = json.loads(body) if answer.status == http.client.OK else None
        return document if isinstance(document, dict) else None
    connection.close()
    return None


def _shortage(needed: int, others: list[OtherEndpoint]) -> NotEnoughMemory:
    is_shared = any(other.memory_bytes for other in others)
    shared = ", and other endpoints that are in use or exempt have some of it" if is_shared else ""
    return NotEnoughMemory(
        f"It takes about {needed / 1e9:.1f} GB of memory, {probe.free_memory() / 1e9:.1f} GB are free{shared}."
    )
