"""Loads the server of an endpoint when a request waits for it, and unloads it when nobody asks.

Everything here runs in the worker's main thread; requests come and go in another (`gateway.held`), and both meet in the
`ServerState`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from backend.channel import JobChannel
from backend.domain.errors import NotEnoughMemory, ServerFailed, WhetstoneError
from backend.domain.jobs.endpoint_states import EndpointState
from backend.domain.jobs.jobs import EndpointSpec, Event
from backend.domain.jobs.restarts import decide_restart
from backend.gateway.held.held_gateway import ServerFigures
from backend.gateway.held.server_state import ServerState
from backend.gateway.refusals import Refusal, try_later
from backend.gateway.routes import Upstream
from backend.serving.model_server import ModelServer
from backend.worker.endpoint.memory_room import MemoryRoom

WATCH_S = 0.25
"""Seconds between two looks at a server that is loaded."""
IDLE_WATCH_S = 5.0
"""The same while it is not; a request that comes ends the wait."""
COUNTERS_S = 2.0
"""Seconds between two readings of the server's counters."""
MEMORY_WAIT_S = 60.0
"""Seconds for which requests wait for memory before they are told to come later."""
RETRY_S = 15.0
TRAFFIC = ("prompt_tokens", "generation_tokens")
"""Counters of the server that are recorded when they change (`service.serving.traffic`)."""


class Loaded(NamedTuple):
    """A server that is there, and when it was loaded (monotonic, in seconds)."""

    server: ModelServer
    since: float


class ServerOwner:
    """Owns the server of one endpoint. `make_server` returns one that is not started."""

    def __init__(
        self,
        spec: EndpointSpec,
        state: ServerState,
        figures: ServerFigures,
        room: MemoryRoom,
        channel: JobChannel,
        make_server: Callable[[], ModelServer],
        memory_wait_s: float = MEMORY_WAIT_S,
    ) -> None:
        self._spec, self._state, self._figures, self._room = spec, state, figures, room
        self._channel, self._make_server, self._memory_wait_s = channel, make_server, memory_wait_s
        self._loaded: Loaded | None = None
        self._loads = self._restarts = self._crashes = 0
        self._loaded_s = 0.0
        self._earlier = dict.fromkeys(TRAFFIC, 0.0)
        """Tokens of servers that have been unloaded."""
        self._latest = dict.fromkeys(TRAFFIC, 0.0)
        self._reported: dict[str, Any] = {}
        self._read_at = 0.0

    def serve(self) -> None:
        """Load and unload until the worker is asked to stop. Raises JobCancelled, and ServerFailed where the server
        does not load, or crashes too often."""
        # 1. Load it at once, or say that it waits for a request.
        if self._spec.fresh or self._spec.keep_loaded:
            self._load()
        else:
            self._say(EndpointState.IDLE, "Not loaded: the first request loads it.")
        # 2. Do what is to be done, then wait for the next request or change.
        while True:
            self._step()
            self._state.attention.wait(WATCH_S if self._loaded else IDLE_WATCH_S)
            self._state.attention.clear()

    def _step(self) -> None:
        state = self._state
        if self._loaded is None:
            if state.waiting or self._spec.keep_loaded:
                self._load()
            return
        if self._loaded.server.has_ended or not (state.is_loaded or state.is_leaving):
            self._recover()
        elif state.is_leaving:
            self._unload("Unloaded, since another endpoint needed its memory; the next request loads it again.")
        elif not self._spec.keep_loaded and state.take_back(self._spec.idle_minutes * 60):
            self._unload(f"Unloaded after {self._spec.idle_minutes:g} minutes without requests; the next one loads it.")
        elif time.monotonic() - self._read_at > COUNTERS_S:
            self._read_counters()

    def _load(self) -> None:
        """Make room, load the server and give it to the requests. Where there is no memory, requests are told so."""
        # 1. Make room.
        self._state.begin()
        try:
            self._room.make_room(
                self._figures.memory_bytes, self._memory_wait_s, claim=self._claim_memory, report=self._say_waiting
            )
        except NotEnoughMemory as error:
            sentence = f"{self._spec.endpoint} is not loaded. {error} Try again in {RETRY_S:.0f} s."
            self._state.refuse(try_later(sentence, kind="not_enough_memory", after_s=RETRY_S))
            if not self._spec.keep_loaded:
                self._say(EndpointState.IDLE, f"Not loaded. {error} The next request tries again.")
            return
        # 2. Start the server.
        began = time.monotonic()
        self._say(EndpointState.LOADING, f"Loading {self._spec.endpoint}")
        server = self._make_server()
        try:
            server.start()
        except WhetstoneError as error:
            self._figures.is_loading = False
            self._fail(error)
            return
        except BaseException:
            self._figures.is_loading = False
            raise
        # 3. Give it to the requests.
        self._loads += 1
        self._loaded = Loaded(server, time.monotonic())
        self._latest = dict.fromkeys(TRAFFIC, 0.0)
        self._figures.memory_bytes = max(server.peak_rss_bytes, server.resident_bytes())
        self._state.lend(self._make_upstream(server))
        self._figures.is_loading = False
        seconds = time.monotonic() - began
        self._say(EndpointState.LOADED, f"Loaded in {seconds:.1f} s.", ready_seconds=round(seconds, 3))

    def _make_upstream(self, server: ModelServer) -> Upstream:
        return Upstream(
            name=self._spec.endpoint,
            source=self._spec.variants[0].source,
            served_name=server.served_name,
            base=server.url.removesuffix("/v1"),
            key=server.key,
            job=self._channel.job,
            since=self._loads,  # tells this server from an earlier one at the same port
        )

    def _claim_memory(self) -> None:
        self._figures.is_loading = True

    def _say_waiting(self, shortage: NotEnoughMemory) -> None:
        self._say(EndpointState.WAITING, f"Waits for memory. {shortage}")

    def _fail(self, error: WhetstoneError) -> None:
        """Refuse the requests that wait. Raises the error where a person has just started it; else it is tried again
        after a pause, unless that failed too often."""
        sentence = f"{self._spec.endpoint} does not load: {error}"
        self._state.refuse(Refusal(HTTPStatus.BAD_GATEWAY, sentence, kind="load_failed"))
        if self._spec.fresh and not self._loads:
            raise error
        self._pause(0.0, str(error))
        if not self._spec.keep_loaded:
            self._say(EndpointState.IDLE, f"Not loaded. {error} The next request tries again.")

    def _recover(self) -> None:
        """Load the server again after a crash."""
        loaded = self._loaded
        assert loaded is not None
        ran_s = time.monotonic() - loaded.since
        self._stop_server()
        self._pause(ran_s, f"The server of {self._spec.endpoint} ended without being asked to.")
        self._load()

    def _pause(self, ran_s: float, why: str) -> None:
        """Wait until the server may be loaded again. Raises ServerFailed after too many crashes."""
        decision = decide_restart(self._crashes, ran_s)
        self._crashes = decision.crashes
        self._restarts += 1
        if decision.pause_s is None:
            raise ServerFailed(f"{why} That was the {decision.crashes}. time in a row: see the log of its server.")
        self._say(EndpointState.RESTARTING, f"{why} It is loaded again.")
        time.sleep(decision.pause_s)

    def _unload(self, message: str) -> None:
        self._read_counters()
        self._stop_server()
        self._say(EndpointState.IDLE, message)

    def _stop_server(self) -> None:
        """End the server and sum up what it did; nothing where there is none."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        loaded.server.stop()
        self._loaded_s += time.monotonic() - loaded.since
        self._earlier = {name: self._earlier[name] + self._latest[name] for name in TRAFFIC}
        self._latest = dict.fromkeys(TRAFFIC, 0.0)
        self._figures.memory_bytes = max(self._figures.memory_bytes, loaded.server.peak_rss_bytes)
        self._state.is_gone()

    def close(self) -> None:
        """End the server and report the counts; for the end of the worker."""
        self._stop_server()
        self._report()

    def _read_counters(self) -> None:
        """Read the server's counters, and report them where they have changed."""
        self._read_at = time.monotonic()
        assert self._loaded is not None
        with suppress(ServerFailed):  # busy, or gone: the next look tells
            counters = self._loaded.server.metrics()
            self._latest = {name: counters.get(name, 0.0) for name in TRAFFIC}
        self._report()

    def _say(self, state: EndpointState, message: str, **data: Any) -> None:
        """Report a change of the state, and the counts with it."""
        print(message, flush=True)
        self._channel.emit(Event(kind="phase", phase=str(state), message=message, data=data), urgent=False)
        self._report()
        self._channel.flush()

    def _report(self) -> None:
        """Report the counts where they have changed."""
        loaded_s = self._loaded_s + (time.monotonic() - self._loaded.since if self._loaded else 0.0)
        tokens = {name: self._earlier[name] + self._latest[name] for name in TRAFFIC}
        counts = self._state.counts
        changing = {
            "served": {self._spec.variants[0].source: tokens},
            "loads": self._loads,
            "restarts": self._restarts,
            "requests": counts.requests,
            "failed_requests": counts.failed,
        }
        if changing == self._reported and self._loaded is not None:
            return
        self._reported = changing
        self._channel.emit(Event(kind="progress", data={**changing, "loaded_s": round(loaded_s, 1)}))
