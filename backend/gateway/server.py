"""The gateway's process: uvicorn on uvloop and httptools, until SIGTERM or Ctrl-C, and then a drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from backend.gateway.app import make_app
from backend.gateway.gateway import Gateway

KEEP_ALIVE_S = 65
"""Seconds that an unused connection of a client stays open."""
BACKLOG = 2048
SWITCH_S = 0.0005
"""Seconds that a stream waits at most for the thread that reads the database; Python's own value is ten times that."""


class GatewayServer(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not followed
    """Says what it waits for when it stops: no new requests, and a limit for those under way."""

    def __init__(self, gateway: Gateway, say: Callable[[str], None] = lambda _: None) -> None:
        self._gateway, self._say = gateway, say
        super().__init__(
            uvicorn.Config(
                make_app(gateway),
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=gateway.options.drain_s,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new requests, and end after those under way or after the drain's seconds."""
        count = self._gateway.in_flight
        if count:
            requests = "One request is" if count == 1 else f"{count} requests are"
            limit = self._gateway.options.drain_s
            self._say(f"{requests} under way, for at most {limit:g} s. Ctrl-C again ends the gateway at once.")
        await super().shutdown(sockets)


def log_defects_only() -> None:
    """Print what nobody foresaw on standard error. Clients that leave and answers that are cut off are in the request
    log."""

    def is_defect(record: logging.LogRecord) -> bool:
        return record.exc_info is not None and not isinstance(record.exc_info[1], asyncio.CancelledError)

    handler = logging.StreamHandler()
    handler.addFilter(is_defect)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    logger.propagate = False


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError where the address or the port is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def run(gateway: Gateway, listening: socket.socket, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; main thread only."""
    # What lives as long as the process is left out of later collections, which else pause streams.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    log_defects_only()
    GatewayServer(gateway, say).run(sockets=[listening])
