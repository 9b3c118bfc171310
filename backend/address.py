"""The address of an endpoint, whether the studio may call it, and connections to it. Standard library only.

Knows nothing of requests.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

from backend import public_addresses, settings
from backend.domain.errors import RequestError

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
SAGEMAKER = "sagemaker"
"""Begins what a person writes of an endpoint there, and its URL."""


class Address(NamedTuple):
    """Host and port to connect to, and what to write into a request. `prefix` is the path up to and with `/v1`."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str
    region: str | None = None
    """AWS region of an endpoint at SageMaker, where one path takes every kind of request; None elsewhere."""

    def path(self, endpoint: str, *, streamed: bool = False) -> str:
        if self.region is not None:
            return f"{self.prefix}/invocations{'-response-stream' if streamed else ''}"
        return self.prefix + PATHS[endpoint]

    @property
    def base(self) -> str:
        """Return what clients of the API call the base URL: up to and with `/v1`."""
        return f"{self}{self.prefix}"

    def __str__(self) -> str:
        if self.region is not None:
            return f"{SAGEMAKER}:{self.prefix.rpartition('/')[2]}@{self.region}"
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def check_public(address: Address) -> None:
    """Check a person's endpoint before its first request: raises RequestError as `resolved` does, also for an address
    that was written as such; a name that is not known today is left to the run."""
    with suppress(OSError):
        _look_up(address, literal=True)


def resolved(address: Address) -> list[tuple[Any, ...]]:
    """Return the rows of `socket.getaddrinfo`, to connect to as they are: each was checked, and no name is resolved
    twice.

    Raises OSError where it is unknown; RequestError where others reach the studio and one of its addresses is not
    public (`public_addresses`): a cloud's metadata, this machine, its network. An address that was written as such was
    looked at when it was named, so that servers which are started here can be measured.
    """
    return _look_up(address, literal=False)


def _look_up(address: Address, *, literal: bool) -> list[tuple[Any, ...]]:
    try:
        rows: list[tuple[Any, ...]] = list(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise socket.gaierror(str(error)) from None
    chosen = settings.load()
    own = address.region is not None  # the owner's own settings of AWS say where that is
    if (
        chosen.shared
        and not own
        and (literal or not _is_literal(address.host))
        and address.host.lower() not in chosen.allowed_addresses
    ):
        for entry in rows:
            if not _is_public(str(entry[4][0]), chosen.allowed_addresses):
                raise RequestError(
                    f"{address} is an address of this machine or its network, and others reach this studio: its owner "
                    f"lists {address.host} in WHETSTONE_ALLOWED_ADDRESSES if it may be asked."
                )
    return rows


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(written: str, allowed: Iterable[str]) -> bool:
    """Return whether the address is public, or allowed by the owner."""
    address = public_addresses.read(written)
    return public_addresses.is_public(address) or any(address in network for network in _networks(allowed))


def _networks(allowed: Iterable[str]) -> Iterator[IPv4Network | IPv6Network]:
    for network in allowed:
        with suppress(ValueError):
            yield ip_network(network, strict=False)


def connect(address: Address, limit_s: float) -> socket.socket:
    """A connection to the first of its addresses that takes one. Raises OSError, RequestError as `resolved`."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, where in resolved(address):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(limit_s)
            connection.connect(where)
        except OSError as error:
            connection.close()
            failure = error
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise failure


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, by its name or number; no name is resolved."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
