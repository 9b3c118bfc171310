"""A gateway before one server that comes and goes, in a thread of the test's process; the test owns the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.gateway.held.held_gateway import HeldGateway, ServerFigures
from backend.gateway.held.server_state import ServerState
from backend.gateway.options import GatewayOptions
from backend.gateway.request_log import RequestLog
from backend.gateway.routes import Upstream
from backend.gateway.server import GatewayServer, listen
from tests.helpers.running_gateway import MODEL, TOKEN, WAIT_S

MEMORY = 1000


def named_upstream(**changes: Any) -> Upstream:
    """Return the names of a server for MODEL, which is not loaded."""
    return Upstream(**({"name": MODEL, "source": "a-123", "served_name": MODEL, "base": "", "job": "j-1"} | changes))


@dataclass
class HeldServer:
    """The gateway of one server: what its owner and its clients use."""

    port: int
    state: ServerState
    figures: ServerFigures

    def lend(self, base: str, *, load: int = 1) -> Upstream:
        """Load the server, which is at that address; `load` tells it from others there."""
        upstream = named_upstream(base=base, key="own", since=load)
        self.state.lend(upstream)
        return upstream


@contextmanager
def held_server(
    folder: Path, *, token: str = TOKEN, state: ServerState | None = None, memory: int = MEMORY
) -> Iterator[HeldServer]:
    """The gateway while it runs; its log is in `folder`."""
    chosen, figures = state or ServerState(), ServerFigures(memory)
    log = RequestLog(folder / "requests.log")
    gateway = HeldGateway(chosen, figures, named_upstream(), token, GatewayOptions(drain_s=1.0), log)
    listening = listen("127.0.0.1", 0)
    server = GatewayServer(gateway)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield HeldServer(listening.getsockname()[1], chosen, figures)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        log.close()
        assert not thread.is_alive(), "the gateway did not stop"
