"""A gateway before one server: requests are held while it is loaded, and it is not unloaded while one uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.domain.frozen import Frozen
from backend.gateway import keys
from backend.gateway.admission import identify
from backend.gateway.exchange import Exchange
from backend.gateway.gateway import Gateway
from backend.gateway.held.server_state import ServerState, Wake
from backend.gateway.keys import ClientKey
from backend.gateway.options import GatewayOptions
from backend.gateway.refusals import Refusal
from backend.gateway.request_log import RequestLog
from backend.gateway.routes import Upstream

SERVER, UNLOAD = "/whetstone/server", "/whetstone/unload"
"""Paths by which other endpoints of this machine see the server and have it unloaded; they need the key."""
NEVER_S = 1e9
"""Seconds between two readings of the key and the server's names, which do not change."""


class ServerDocument(Frozen):
    """The answer to `GET /whetstone/server`. Seconds and bytes."""

    name: str
    is_loaded: bool
    is_loading: bool
    may_leave: bool
    """Another may have it unloaded now."""
    idle_s: float
    in_flight: int
    memory_bytes: int
    """The memory that it takes, or will take once it is loaded."""


class ServerFigures:
    """Figures that the owner of a server tells others."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.is_loading = False


class HeldGateway(Gateway):
    """Answers for one model at one address. `token` is the key that its clients need; `named` has the names under which
    they may ask, and the job."""

    def __init__(
        self,
        state: ServerState,
        figures: ServerFigures,
        named: Upstream,
        token: str,
        options: GatewayOptions,
        log: RequestLog,
    ) -> None:
        client = ClientKey(name="endpoint", digest=keys.digest(token))
        unchanging = options.model_copy(update={"refresh_s": NEVER_S})
        super().__init__(lambda: ([client], [named]), unchanging, log, loopback_only=True)
        self._state, self._figures, self._named = state, figures, named
        self.more_routes = (Route(SERVER, self._show), Route(UNLOAD, self._unload, methods=["POST"]))

    @asynccontextmanager
    async def lend_upstream(self, model: str) -> AsyncIterator[Upstream]:
        """Lend the server to one request, once it is loaded. Raises Refusal."""
        self.routes.require(model)
        upstream = await self._enter()
        try:
            yield upstream
        finally:
            self._state.leave()

    async def _enter(self) -> Upstream:
        loop = asyncio.get_running_loop()
        while True:
            waits: asyncio.Future[None] = loop.create_future()
            wake = _make_wake(loop, waits)
            upstream = self._state.enter(wake)
            if upstream is not None:
                return upstream
            try:
                await waits
            finally:
                self._state.withdraw(wake)

    async def wait_for(self, upstream: Upstream, refusal: Refusal, waited_s: float) -> None:
        """Report that the server is gone; the request then waits for the next one."""
        self._state.report_gone(upstream)

    def record(self, exchange: Exchange) -> None:
        """Record an ended request in metrics, log and counts. One that was not admitted is not counted."""
        super().record(exchange)
        if exchange.key:
            status = exchange.status or HTTPStatus.OK
            at_fault = status < HTTPStatus.BAD_REQUEST or status >= HTTPStatus.INTERNAL_SERVER_ERROR
            self._state.count(failed=exchange.error not in {None, "client_left", "client_stalled"} and at_fault)

    def health(self) -> dict[str, Any]:
        """Return the answer to `GET /health`: it is well whether its server is loaded or not."""
        return {**super().health(), "loaded": self._state.is_loaded, "waiting": self._state.waiting}

    def _document(self) -> ServerDocument:
        state, figures = self._state, self._figures
        return ServerDocument(
            name=self._named.name,
            is_loaded=state.is_loaded,
            is_loading=figures.is_loading,
            may_leave=state.may_leave,
            idle_s=round(state.idle_s, 3),
            in_flight=state.in_flight,
            memory_bytes=figures.memory_bytes,
        )

    async def _show(self, request: Request) -> Response:
        identify(self.keys, request.scope["headers"])
        return Response(self._document().model_dump_json(), media_type="application/json")

    async def _unload(self, request: Request) -> Response:
        """Have the server unloaded, unless it is in use or exempt; answer once its memory is free."""
        identify(self.keys, request.scope["headers"])
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        unloaded = self._state.unload_for_other(_make_wake(loop, waits))
        if unloaded:
            await waits
        status = HTTPStatus.OK if unloaded else HTTPStatus.CONFLICT
        return Response(json.dumps({"unloaded": unloaded}), status, media_type="application/json")


def _make_wake(loop: asyncio.AbstractEventLoop, waits: asyncio.Future[None]) -> Wake:
    """Return what ends the wait from any thread."""

    def end(refusal: Refusal | None) -> None:
        if waits.done():
            return
        if refusal is None:
            waits.set_result(None)
        else:
            waits.set_exception(refusal)

    return lambda refusal: _call_soon(loop, end, refusal)


def _call_soon(loop: asyncio.AbstractEventLoop, end: Wake, refusal: Refusal | None) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(end, refusal)
