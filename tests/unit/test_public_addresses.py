"""Which addresses a studio that others reach may ask: every network that is not public, in every form it can be
written."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from backend.address import check_public
from backend.domain.errors import RequestError
from backend.endpoint import parse_address, send
from backend.public_addresses import GLOBAL_UNICAST, NOT_PUBLIC, SIX_TO_FOUR, TEREDO, is_public, read
from tests.properties import examples

VERSION_4 = [row.network for row in NOT_PUBLIC if isinstance(row.network, IPv4Network)]
OUTSIDE = [
    "::/96",
    "::ffff:0:0:0/96",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "4000::/3",
    "8000::/3",
]
"""Networks of version 6 outside GLOBAL_UNICAST: those of IANA's registry, deprecated ones, and what was never given
out."""
VERSION_6 = [row.network for row in NOT_PUBLIC if isinstance(row.network, IPv6Network)] + [
    IPv6Network(each) for each in OUTSIDE
]


def forms(inner: IPv4Address) -> dict[str, str]:
    """Every way to write an address of version 4 inside one of version 6, and as a number that resolvers take."""
    low = int(inner)
    six = {
        "mapped": 0xFFFF << 32 | low,
        "compatible": low,
        "translated": 0xFFFF << 48 | low,
        "nat64": 0x64_FF9B << 96 | low,
        "nat64 of local use": 0x64_FF9B_0001 << 80 | low,
        "6to4": 0x2002 << 112 | low << 80 | 1,
        "teredo client": 0x2001 << 112 | 0x0909_0909 << 64 | (low ^ 0xFFFF_FFFF),
        "teredo server": 0x2001 << 112 | low << 64 | (0x0909_0909 ^ 0xFFFF_FFFF),
        "isatap": 0x2620_00FE << 96 | 0x5EFE << 32 | low,
        "isatap, global": 0x2620_00FE << 96 | 0x0200_5EFE << 32 | low,
    }
    return {"plain": str(inner)} | {name: str(IPv6Address(number)) for name, number in six.items()}


@st.composite
def inside(draw: DrawFn, networks: list[IPv4Network]) -> IPv4Address:
    network = draw(st.sampled_from(networks))
    return network[draw(st.sampled_from([0, -1]) | st.integers(0, network.num_addresses - 1))]


@given(inside(VERSION_4))
@examples(2000, 60)
def test_no_form_of_an_address_of_version_4_that_is_not_public_passes(inner: IPv4Address) -> None:
    assert [name for name, written in forms(inner).items() if is_public(read(written))] == []


@given(st.sampled_from(VERSION_6), st.data())
@examples(2000, 60)
def test_no_address_of_version_6_that_is_not_public_passes(network: IPv6Network, data: st.DataObject) -> None:
    number = data.draw(st.integers(int(network[0]), int(network[-1])))
    # inside 2001::/23, judged by what it carries
    assert not is_public(IPv6Address(number)) or IPv6Address(number) in TEREDO


@given(st.integers(0, 2**32 - 1))
@examples(2000, 60)
def test_a_public_address_of_version_4_passes_in_the_forms_that_reach_it(number: int) -> None:
    inner = IPv4Address(number)
    listed = any(inner in network for network in VERSION_4)
    reaching = {name: written for name, written in forms(inner).items() if name in {"plain", "mapped", "nat64", "6to4"}}
    assert {name: is_public(read(written)) for name, written in reaching.items()} == dict.fromkeys(reaching, not listed)


@given(st.integers(int(GLOBAL_UNICAST[0]), int(GLOBAL_UNICAST[-1])))
@examples(1000)
def test_only_what_is_listed_inside_global_unicast_is_refused(number: int) -> None:
    written = IPv6Address(number)
    listed = any(written in row.network for row in NOT_PUBLIC)
    assert is_public(written) != listed or written in TEREDO or written in SIX_TO_FOUR


CLOUDS = {
    "Amazon, Azure, Google, DigitalOcean": "169.254.169.254",
    "Amazon ECS": "169.254.170.2",
    "Amazon, version 6": "fd00:ec2::254",
    "Google, version 6": "fd20:ce::254",
    "Azure's WireServer": "168.63.129.16",
    "Oracle": "192.0.0.192",
    "Alibaba": "100.100.100.200",
}


@pytest.mark.parametrize("written", CLOUDS.values(), ids=CLOUDS)
def test_what_a_cloud_tells_its_machines_is_refused(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"[{written}]" if ":" in written else written
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with pytest.raises(RequestError, match="others reach this studio"):
        check_public(parse_address(f"http://{host}"))


@pytest.mark.parametrize("where", ["168.63.129.16", "192.0.0.192", "64:ff9b:1::a9fe:a9fe", "fec0::1", "::127.0.0.1"])
def test_a_name_is_judged_by_what_it_resolves_to_when_it_is_connected_to(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [(socket.AF_INET6 if ":" in where else socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with (
        pytest.raises(RequestError, match="others reach this studio"),
        send(parse_address("http://rebinds.example"), "GET", "/"),
    ):
        pass


def test_what_the_owner_lists_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    monkeypatch.setenv("WHETSTONE_ALLOWED_ADDRESSES", "10.0.4.0/24, fd00:1::/64")
    for written in ("http://10.0.4.7", "http://[::ffff:10.0.4.7]", "http://[fd00:1::8]"):
        check_public(parse_address(written))
    for written in ("http://10.0.5.7", "http://[2002:a00:407::1]", "http://[fd00:2::8]"):
        with pytest.raises(RequestError, match="WHETSTONE_ALLOWED_ADDRESSES"):
            check_public(parse_address(written))
