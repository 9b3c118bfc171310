"""Endpoints of one home share the memory: an idle one is unloaded for another, one in use or exempt is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from backend import served_keys
from backend.domain.errors import NotEnoughMemory
from backend.gateway.held import server_state
from backend.gateway.held.server_state import ServerState
from backend.hardware import probe
from backend.worker.endpoint import memory_room
from backend.worker.endpoint.memory_room import MemoryRoom
from tests.helpers.held_servers import HeldServer, held_server

TOTAL, NEEDED = 1500, 1000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers may leave at once, and tries follow each other at once."""
    monkeypatch.setattr(server_state, "SETTLED_S", 0.0)
    monkeypatch.setattr(memory_room, "POLL_S", 0.01)
    monkeypatch.setattr(memory_room, "ASK_S", 60.0)  # the other one may still be starting


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports of servers that have their memory, which the machine then has not."""
    ports: set[int] = set()
    monkeypatch.setattr(probe, "free_memory", lambda: TOTAL - NEEDED * len(ports))
    return ports


@contextmanager
def announced_endpoint(home: Path, loaded: set[int], *, keep_loaded: bool = False) -> Iterator[HeldServer]:
    """A loaded endpoint that the others find, whose owner unloads it when it is told to."""
    done = threading.Event()
    folder = home / f"endpoint-{len(loaded)}-{keep_loaded}"
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        token = "key of a test"
        running = stack.enter_context(held_server(folder, token=token, state=ServerState(keep_loaded=keep_loaded)))
        own = served_keys.make(running.port)
        stack.callback(served_keys.forget, running.port, own)
        served_keys.file(running.port).write_text(token)
        stack.enter_context(MemoryRoom(home, running.port).announced())
        running.lend("http://127.0.0.1:1")
        loaded.add(running.port)

        def own_server() -> None:
            while not done.is_set():
                running.state.attention.wait(0.02)
                running.state.attention.clear()
                if running.state.is_leaving:
                    loaded.discard(running.port)
                    running.state.is_gone()

        owner = threading.Thread(target=own_server)
        owner.start()
        try:
            yield running
        finally:
            done.set()
            owner.join()


def make_room(home: Path, *, wait_s: float = 0.0) -> list[str]:
    """Make room for NEEDED bytes; return what happened."""
    happened: list[str] = []
    claim: Callable[[], None] = lambda: happened.append("claimed")  # noqa: E731
    MemoryRoom(home, 1).make_room(NEEDED, wait_s, claim=claim, report=lambda error: happened.append(str(error)))
    return happened


def test_an_idle_endpoint_is_unloaded_for_another(tmp_path: Path, loaded: set[int]) -> None:
    with announced_endpoint(tmp_path, loaded) as idle:
        assert make_room(tmp_path) == ["claimed"]
        assert not idle.state.is_loaded and not loaded
        assert make_room(tmp_path) == ["claimed"], "there is room now"


def test_one_in_use_and_an_exempt_one_stay(tmp_path: Path, loaded: set[int]) -> None:
    with announced_endpoint(tmp_path, loaded) as busy:
        assert busy.state.enter(lambda _: None) is not None
        with pytest.raises(NotEnoughMemory, match="other endpoints that are in use or exempt"):
            make_room(tmp_path)
        assert busy.state.is_loaded
    loaded.clear()
    with announced_endpoint(tmp_path, loaded, keep_loaded=True) as exempt:
        with pytest.raises(NotEnoughMemory):
            make_room(tmp_path)
        assert exempt.state.is_loaded


def test_it_waits_until_the_other_is_no_longer_used(tmp_path: Path, loaded: set[int]) -> None:
    with announced_endpoint(tmp_path, loaded) as busy:
        assert busy.state.enter(lambda _: None) is not None
        happened: list[str] = []

        def end_use(error: NotEnoughMemory) -> None:
            happened.append(str(error))
            busy.state.leave()

        MemoryRoom(tmp_path, 1).make_room(NEEDED, 20.0, claim=lambda: happened.append("claimed"), report=end_use)
        assert happened[0].startswith("It takes about") and happened[1:] == ["claimed"] and not loaded


def test_an_endpoint_that_is_gone_is_not_waited_for(tmp_path: Path, loaded: set[int]) -> None:
    (tmp_path / memory_room.FOLDER).mkdir()
    (tmp_path / memory_room.FOLDER / f"9{memory_room.SUFFIX}").touch()
    assert make_room(tmp_path) == ["claimed"]
