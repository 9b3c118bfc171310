"""Counters of a server that was not started here: read where they are told, no error and no long wait where they are
not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from backend.domain.evaluation.document import Speculation, Variant, VariantResult
from backend.evaluate.public_counters import PublicCounters
from backend.worker.measuring.server_pool import Endpoint
from tests.fakes.running import running
from tests.homes import eventually

pytestmark = pytest.mark.process

VARIANT = Variant(name="v", source="s", kind="model")
GUESSING = Speculation(method="ngram", tokens=2)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[int]]]:
    """The address of a socket that answers each connection so, and a list with one entry for each of them."""
    observed: list[int] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                observed.append(1)
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", observed
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/chat/completions"])
def test_the_counters_of_speculation_are_read_beside_v1(suffix: str) -> None:
    with running("exact_server.py", "--metrics", "--drafted", 4, "--accepted", 3) as url:
        public = PublicCounters(url + suffix)
        assert public.speculates is None
        counters = Endpoint(url, None, None, public=public).counters()
        assert (counters["accepted_tokens"], counters["drafted_tokens"]) == (0.0, 0.0)
        assert public.speculates is True


def test_a_vllm_without_speculation_is_known_to_have_none() -> None:
    with running("exact_server.py", "--metrics") as url:
        public = PublicCounters(url)
        assert "drafted_tokens" not in Endpoint(url, None, None, public=public).counters()
        assert public.speculates is False


@pytest.mark.parametrize("script", ["exact_server.py", "broken_server.py", "plain_server.py"])
def test_a_server_that_tells_no_counters_is_no_error(script: str) -> None:
    with running(script) as url:
        public = PublicCounters(url)
        assert (public.read(), public.speculates) == ({}, None)


def test_nobody_at_the_address_is_no_error_here() -> None:
    assert PublicCounters("http://127.0.0.1:1").read() == {}


def hang(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


def trickle(connection: socket.socket) -> None:
    """Never silent, never done: no limit on a single read would end it."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    tick = threading.Event()
    while not tick.wait(0.02):
        connection.sendall(b"#")


def reset(connection: socket.socket) -> None:
    connection.recv(1024)


def nonsense(connection: socket.socket) -> None:
    connection.recv(1024)
    body = b"vllm:generation_tokens_total many\n"
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize("answer", [hang, trickle, reset, nonsense])
def test_what_cannot_be_read_in_time_is_not_asked_for_again(answer: Callable[[socket.socket], None]) -> None:
    with listening(answer) as (url, observed):
        public = PublicCounters(url, limit_s=0.3)
        assert [public.read(), public.read(), public.read()] == [{}] * 3
        eventually("it was asked", lambda: len(observed) >= 1)
        assert len(observed) == 1


@pytest.mark.parametrize(
    ("variant", "speculates", "words"),
    [
        ({}, None, "no speculation"),
        ({}, False, "no speculation"),
        ({"speculation": GUESSING}, None, "not measured"),
        ({"kind": "url"}, None, "not told"),
        ({"kind": "url"}, False, "no speculation"),
        ({"kind": "url"}, True, "not measured"),
    ],
)
def test_why_there_is_no_acceptance_rate(variant: dict[str, object], speculates: bool | None, words: str) -> None:
    result = VariantResult(name="v", variant=VARIANT.model_copy(update=variant), levels=[], speculates=speculates)
    assert result.no_acceptance == words
