"""The state that all requests of a gateway share: keys, routes, metrics, log, and the client of the servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import aiohttp
from starlette.routing import BaseRoute

from backend import logs
from backend.domain.errors import WhetstoneError
from backend.gateway import portfolio_route
from backend.gateway.exchange import Exchange
from backend.gateway.keys import ClientKey, KeyRing
from backend.gateway.metrics import Metrics
from backend.gateway.options import GatewayOptions
from backend.gateway.portfolio_route import PortfolioRoute
from backend.gateway.refusals import Refusal, try_later
from backend.gateway.request_log import RequestLog
from backend.gateway.routes import RouteTable, Upstream

IDLE_CONNECTION_S = 2.0
"""Seconds that an unused connection to a server is kept: less than the five after which uvicorn and llama.cpp close it,
so that no request meets one that is being closed."""
SHORTEST_REFRESH_S = 0.5
"""Seconds between two readings, however many requests name a model that is not known yet."""
ENDING_S = 1.0
"""Seconds that requests have to end once they were cancelled."""

RESTART_S, RETRY_S, POLL_S = 60.0, 10.0, 0.25
"""Seconds for which a request waits for an endpoint that is being started again, after which a client may try again,
and between two tries."""

ReadKeysAndServers = Callable[[], tuple[Sequence[ClientKey], Sequence[Upstream]]]


class Gateway:
    """The shared state. `read` returns keys and servers as they are now; it may wait for a database, so a thread calls
    it, and what it raises of WhetstoneError leaves everything as it was."""

    def __init__(
        self, read: ReadKeysAndServers, options: GatewayOptions, log: RequestLog, *, loopback_only: bool
    ) -> None:
        self._read, self.options, self._log = read, options, log
        keys, upstreams = read()
        self.keys = KeyRing(keys, loopback_only=loopback_only)
        self.routes = RouteTable(upstreams)
        self.metrics = Metrics()
        self.in_flight = 0
        portfolio = options.portfolio
        self.portfolio = PortfolioRoute(portfolio, options.portfolio_sources) if portfolio else None
        self.more_routes: Sequence[BaseRoute] = ()
        """Paths of its own besides those that every gateway answers."""
        self._session: aiohttp.ClientSession | None = None
        self._refreshing = asyncio.Lock()
        self._noted(store_up=True)

    @property
    def session(self) -> aiohttp.ClientSession:
        """Return the client of the servers, which lives as long as the gateway runs."""
        assert self._session is not None, "the gateway does not run"
        return self._session

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the client and the readings; at the end wait a moment for requests that were cancelled."""
        # 1. Start.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.options.connect_s, sock_read=self.options.stall_s)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        refreshing = asyncio.create_task(self._refresh_for_ever())
        try:
            yield
        finally:
            # 2. Stop.
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    while self.in_flight:
                        await asyncio.sleep(0.01)
            await self._session.close()

    def divides(self, model: str) -> bool:
        """Tell whether requests for that model are divided between the variants of a portfolio."""
        return self.portfolio is not None and model == portfolio_route.MODEL

    async def require_upstream(self, model: str) -> Upstream:
        """Return the server for that model, also one that has just started. Raises Refusal (404)."""
        # 1. Read the servers again where none is known.
        divided = self.portfolio if self.divides(model) else None
        known = divided.choose(self.routes) if divided else self.routes.choose(model)
        if known is None and time.monotonic() - self._read_at > SHORTEST_REFRESH_S:
            await self.refresh()
        # 2. That of the model, or of the portfolio at the load of the moment.
        return divided.require(self.routes) if divided else self.routes.require(model)

    @asynccontextmanager
    async def lend_upstream(self, model: str) -> AsyncIterator[Upstream]:
        """Lend the server for that model to one request, which is counted meanwhile. Raises Refusal."""
        upstream = await self.require_upstream(model)
        with self.count(model):
            yield upstream

    async def wait_for(self, upstream: Upstream, refusal: Refusal, waited_s: float) -> None:
        """Wait a moment for a server that took no connection, where it is an endpoint, which is started again; then
        its place is read anew. Raises the refusal for any other server, and Refusal (503) after RESTART_S."""
        if not upstream.is_restarted:
            raise refusal
        if waited_s > RESTART_S:
            sentence = f"The endpoint {upstream.name} is being started again: try again in {RETRY_S:.0f} s."
            raise try_later(sentence, kind="endpoint_restarting", after_s=RETRY_S)
        await asyncio.sleep(POLL_S)
        await self.refresh()

    def count(self, model: str) -> AbstractContextManager[None]:
        """Count a request for that model while it is passed on, where a portfolio decides by such counts."""
        return self.portfolio.count() if self.portfolio and self.divides(model) else nullcontext()

    def health(self) -> dict[str, Any]:
        """Return the answer to `GET /health`."""
        return {"status": "ok", "models": len(self.routes.names), "in_flight": self.in_flight}

    def document(self) -> dict[str, Any]:
        """Return the answer to `GET /v1/models`: the model of the portfolio, then all served ones."""
        listed = self.routes.document()
        variants = self.portfolio.find_servers(self.routes) if self.portfolio else []
        if not variants:
            return listed
        upstream = variants[0]
        row = {"id": portfolio_route.MODEL, "object": "model", "created": upstream.since, "owned_by": "whetstone"}
        return {**listed, "data": [row, *listed["data"]]}

    async def refresh(self) -> None:
        """Read keys and servers again. Where the database does not answer, those of the last reading stay."""
        async with self._refreshing:
            try:
                keys, upstreams = await asyncio.to_thread(self._read)
            except WhetstoneError as error:
                if self._store_up:
                    logs.log_event("gateway", f"Keys and servers stay as they were: {error}", level=logging.ERROR)
                self._noted(store_up=False)
                return
            self.keys.replace(keys)
            self.routes = RouteTable(upstreams)
            self._noted(store_up=True)

    def _noted(self, *, store_up: bool) -> None:
        self._store_up, self._read_at = store_up, time.monotonic()
        self.metrics.observe_refresh(len(self.routes.names), store_up=store_up)

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.options.refresh_s)
            try:
                await self.refresh()
            except Exception:  # the top of this task: a key that is removed must be refused later all the same
                logging.exception("Keys and servers could not be read, and stay as they were.")

    def record(self, exchange: Exchange) -> None:
        """Record an ended request in metrics and log."""
        exchange.duration_s = exchange.elapsed()
        self.metrics.record(exchange)
        self._log.write(exchange)
