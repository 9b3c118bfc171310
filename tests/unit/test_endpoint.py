"""Which secrets may leave the machine, and to where: nothing is asked of a server here."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from backend.address import check_public, connect
from backend.domain.errors import RequestError
from backend.endpoint import bearer, check_bearer, parse_address, send
from backend.service.evaluations import bench, evaluations
from tests.homes import open_home

AWAY, HERE = "https://models.example.org", "http://127.0.0.1:8000"


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH", "XWHETSTONE_TOKEN_A"])
def test_a_variable_that_the_owner_did_not_name_is_not_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "a-secret-of-somebody")
    with pytest.raises(
        RequestError, match=f"{name} is not sent to an endpoint: .*WHETSTONE_TOKEN_.*WHETSTONE_BEARER_ENV"
    ):
        bearer(name, parse_address(AWAY))
    monkeypatch.setenv("WHETSTONE_BEARER_ENV", f"OTHER, {name}")
    assert bearer(name, parse_address(AWAY)) == "a-secret-of-somebody"


def test_where_others_reach_the_studio_a_token_goes_only_to_its_listed_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "WHETSTONE_TOKEN_A"
    monkeypatch.setenv(name, "a-secret-of-somebody")
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    for listed in ("", name, f"{name}@other.example.org", f"X{name}@models.example.org"):
        monkeypatch.setenv("WHETSTONE_BEARER_ENV", listed)
        with pytest.raises(RequestError, match=f"is not sent to models.example.org: list {name}@models.example.org in"):
            bearer(name, parse_address(AWAY))
    monkeypatch.setenv("WHETSTONE_BEARER_ENV", f"HF_TOKEN, {name}@Models.example.org")
    assert bearer(name, parse_address(AWAY)) == "a-secret-of-somebody"
    monkeypatch.setenv("WHETSTONE_SHARED", "0")
    assert bearer(name, parse_address(AWAY)) == "a-secret-of-somebody"
    with pytest.raises(RequestError, match=f"is not sent to collector.example: list {name}@collector.example"):
        bearer(name, parse_address("https://collector.example"))


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (AWAY, True),
        (HERE, True),
        ("http://[::1]:8000", True),
        ("http://localhost:8000/v1", True),
        ("http://127.9.9.9", True),
        ("http://models.example.org", False),
        ("http://10.0.0.7:8000", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://0.0.0.0:8000", False),
    ],
)
def test_a_token_never_goes_unencrypted_to_another_machine(url: str, sent: bool) -> None:
    if sent:
        check_bearer("WHETSTONE_TOKEN_A", parse_address(url))
        return
    with pytest.raises(RequestError, match=r"WHETSTONE_TOKEN_A would go to .* unencrypted: give an https:// address"):
        check_bearer("WHETSTONE_TOKEN_A", parse_address(url))


def test_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    options = evaluations.read_options(bearer_env="HF_TOKEN")
    with pytest.raises(RequestError, match="HF_TOKEN is not sent"):
        evaluations.prepare(home, [f"{AWAY}#m"], options)
    with pytest.raises(RequestError, match="HF_TOKEN is not sent"):
        bench.run_bench(home, AWAY, "m", options)


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://169.254.169.254/latest", True),
        ("http://10.0.0.7:8000", True),
        (HERE, True),
        ("http://[fe80::1]", True),
        ("http://[::ffff:169.254.169.254]", True),
        ("http://192.168.1.1", True),
        ("http://9.9.9.9", False),
        ("http://[fd00:ec2::254]", True),
        ("http://[64:ff9b::a9fe:a9fe]", True),
        ("http://[2002:a9fe:a9fe::1]", True),
        ("http://2852039166", True),
        ("http://0x7f.1", True),
        ("http://100.64.0.1", True),
        ("http://224.0.0.1", True),
        ("http://0.0.0.0:8000", True),
        ("http://localhost", True),
        ("http://[2620:fe::fe]", False),
    ],
)
def test_a_shared_studio_asks_no_address_of_its_own_network(
    url: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_public(parse_address(url))
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    if not refused:
        check_public(parse_address(url))
        return
    with pytest.raises(RequestError, match="others reach this studio"):
        check_public(parse_address(url))
    for listed in (parse_address(url).host.upper(), "0.0.0.0/0, ::/0"):
        monkeypatch.setenv("WHETSTONE_ALLOWED_ADDRESSES", listed)
        check_public(parse_address(url))


def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first answer is public, the second is not."""
    answers = [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, 80))] for where in ("9.9.9.9", "169.254.169.254")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop(0))
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    place = parse_address("http://rebinds.example")
    check_public(place)
    with pytest.raises(RequestError, match="others reach this studio"), send(place, "GET", "/"):
        pass


def test_servers_that_are_started_here_are_asked_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect(parse_address(f"http://127.0.0.1:{server.getsockname()[1]}"), 5.0).close()
        with pytest.raises(RequestError, match="others reach this studio"):
            connect(parse_address(f"http://localhost:{server.getsockname()[1]}"), 5.0)
