"""Tells which internet addresses are public: a studio that others reach calls only these on their behalf.

`ipaddress.is_global` is not used: its lists change with the version of Python, and it does not know what clouds put
at addresses that look public. Standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple


class NotPublic(NamedTuple):
    """A network that is not for all the world: its name, and who says so."""

    network: IPv4Network | IPv6Network
    name: str
    source: str


def _rows(*rows: tuple[str, str, str]) -> tuple[NotPublic, ...]:
    return tuple(NotPublic(ip_network(network), name, source) for network, name, source in rows)


NOT_PUBLIC = _rows(
    # IANA IPv4 Special-Purpose Address Registry (RFC 6890), the rows that are not globally reachable.
    ("0.0.0.0/8", "this network", "RFC 791"),
    ("10.0.0.0/8", "private use", "RFC 1918"),
    ("100.64.0.0/10", "shared address space; a cloud's metadata at 100.100.100.200 (Alibaba)", "RFC 6598"),
    ("127.0.0.0/8", "loopback", "RFC 1122"),
    ("169.254.0.0/16", "link-local; most clouds' metadata", "RFC 3927"),
    ("172.16.0.0/12", "private use", "RFC 1918"),
    ("192.0.0.0/24", "protocol assignments, anycast ones too; a cloud's metadata at 192.0.0.192 (Oracle)", "RFC 6890"),
    ("192.0.2.0/24", "documentation", "RFC 5737"),
    ("192.88.99.0/24", "6to4 relays, deprecated", "RFC 7526"),
    ("192.168.0.0/16", "private use", "RFC 1918"),
    ("198.18.0.0/15", "benchmarking", "RFC 2544"),
    ("198.51.100.0/24", "documentation", "RFC 5737"),
    ("203.0.113.0/24", "documentation", "RFC 5737"),
    ("224.0.0.0/4", "multicast", "RFC 5771"),
    ("240.0.0.0/4", "reserved, and broadcast", "RFC 1112"),
    # IANA IPv6 Special-Purpose Address Registry: those inside 2000::/3. What lies outside is never public
    # (`GLOBAL_UNICAST`).
    ("2001::/23", "protocol assignments, but for Teredo", "RFC 2928"),
    ("2001:db8::/32", "documentation", "RFC 3849"),
    ("3fff::/20", "documentation", "RFC 9637"),
    # Looks public and is answered by the cloud's own host.
    (
        "168.63.129.16/32",
        "Azure's WireServer and name server",
        "learn.microsoft.com: What is IP address 168.63.129.16?",
    ),
)
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All of version 6 that was ever given out (RFC 4291, IANA IPv6 Address Space): the rest is local, reserved or
deprecated."""

MAPPED = IPv6Network("::ffff:0:0/96")
"""A socket sends what goes there by version 4 (RFC 4291, 2.5.5.2)."""
NAT64 = IPv6Network("64:ff9b::/96")
"""The version 4 as it is reached from a network of version 6 (RFC 6052). 64:ff9b:1::/48, for local use, is not
public."""
SIX_TO_FOUR = IPv6Network("2002::/16")
TEREDO = IPv6Network("2001::/32")
ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The upper half of an interface identifier whose lower half is an address of version 4, below any prefix (RFC 5214,
6.1)."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether the address, and each IPv4 address embedded in it, is public."""
    if isinstance(address, IPv6Address):
        carried = tuple(embedded(address))
        if address in MAPPED or address in NAT64:
            return all(map(is_public, carried))
        if address not in GLOBAL_UNICAST or not all(map(is_public, carried)):
            return False
        if address in TEREDO:
            return True
    return not any(address in row.network for row in NOT_PUBLIC)


def embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """The addresses of version 4 that packets to it may end at, by the form of the address."""
    number = int(address)
    low = number & 0xFFFF_FFFF
    if address in MAPPED or address in NAT64:
        yield IPv4Address(low)
    if address in SIX_TO_FOUR:  # bits 16 to 47 (RFC 3056)
        yield IPv4Address(number >> 80 & 0xFFFF_FFFF)
    if address in TEREDO:  # the server, and the client with its bits inverted (RFC 4380, 4)
        yield IPv4Address(number >> 64 & 0xFFFF_FFFF)
        yield IPv4Address(low ^ 0xFFFF_FFFF)
    if number >> 32 & 0xFFFF_FFFF in ISATAP:
        yield IPv4Address(low)


def read(written: str) -> IPv4Address | IPv6Address:
    """The address as `socket.getaddrinfo` writes it, without its zone; one mapped to version 6 as the version 4 that it
    is.

    Raises ValueError where it is no address."""
    address = ip_address(written.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
