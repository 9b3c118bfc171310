"""Divides the requests for one model name between the variants of a portfolio, by the streams in flight.

The rule is that of `domain.what_if.portfolio`: new requests go to the variant of the range, and between the two sides
of a switch to the one that served last. A request that has begun stays where it is, so none is lost at a switch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from backend.domain.what_if.portfolio import Portfolio, choose_variant
from backend.gateway.refusals import Refusal
from backend.gateway.routes import RouteTable, Upstream

MODEL = "auto"
"""The model name that clients give for the best variant at the load of the moment."""


class PortfolioRoute:
    """One portfolio. `sources`: the id of each of its variants, by which a server may be known too."""

    def __init__(self, portfolio: Portfolio, sources: Mapping[str, str]) -> None:
        self._portfolio, self._sources = portfolio, sources
        self._variants = list(dict.fromkeys(part.variant for part in portfolio.ranges))
        self._serving: str | None = None
        self.in_flight = 0

    @property
    def variants(self) -> list[str]:
        """Return the variants of the portfolio, each once, from few to many streams."""
        return list(self._variants)

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count one request in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def choose(self, routes: RouteTable) -> Upstream | None:
        """Return the server for one more request; None where no variant of the portfolio is served.

        Where the variant of the range is not served, the nearest one that is answers.
        """
        chosen = choose_variant(self._portfolio, self.in_flight + 1, self._serving)
        self._serving = chosen
        place = self._variants.index(chosen)
        nearest = sorted(self._variants, key=lambda name: abs(self._variants.index(name) - place))
        servers = (self.find_server(routes, name) for name in nearest)
        return next((server for server in servers if server is not None), None)

    def find_server(self, routes: RouteTable, variant: str) -> Upstream | None:
        """Return the server of a variant, by its name or its id; None where it is not served."""
        return routes.choose(variant) or routes.choose(self._sources.get(variant, variant))

    def find_servers(self, routes: RouteTable) -> list[Upstream]:
        """Return the servers of the variants that are served, from few to many streams."""
        servers = (self.find_server(routes, name) for name in self._variants)
        return [server for server in servers if server is not None]

    def require(self, routes: RouteTable) -> Upstream:
        """Return the server for one more request. Raises Refusal (404) that says what to start."""
        upstream = self.choose(routes)
        if upstream is None:
            sources = " ".join(self._sources.get(name, name) for name in self._variants)
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"No variant of the portfolio is served now: start them with `whetstone serve {sources}`.",
                kind="unknown_model",
                code="model_not_found",
                param="model",
            )
        return upstream
