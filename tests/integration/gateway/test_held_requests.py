"""Requests for a server that comes and goes: held, passed on once it is there, and told when it will not be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from backend.gateway.held import server_state
from backend.gateway.held.held_gateway import SERVER, UNLOAD
from backend.gateway.held.server_state import ServerState
from backend.gateway.refusals import Refusal, try_later
from tests.fakes.scripted_upstream import Step, event, scripted_upstream, stream, whole
from tests.helpers.held_servers import HeldServer, held_server, named_upstream
from tests.helpers.running_gateway import TOKEN, Connection, Reply, ask, require_ok
from tests.homes import eventually

ANSWER = whole({"usage": {"prompt_tokens": 3, "completion_tokens": 2}})


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[HeldServer]:
    with held_server(tmp_path) as running:
        yield running


def refuse(state: ServerState, *, lasting: bool = False) -> None:
    state.refuse(try_later("There is no memory.", kind="not_enough_memory", after_s=14.2), lasting=lasting)


def health(gate: HeldServer) -> dict[str, Any]:
    return dict(json.loads(ask(gate.port, "/health", method="GET", authorization="").body))


def test_a_burst_is_held_and_answered_once_the_server_is_there(gate: HeldServer) -> None:
    with scripted_upstream(ANSWER) as upstream, ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, gate.port) for _ in range(16)]
        eventually("all are held", lambda: gate.state.waiting == 16)
        assert gate.state.attention.is_set() and not upstream.requests
        gate.lend(upstream.base)
        for answer in answers:
            require_ok(answer.result())
    # a request is counted after its answer has gone
    eventually("all are counted", lambda: (gate.state.counts, gate.state.in_flight) == ((16, 0), 0))


def test_a_client_that_leaves_while_it_is_held_is_forgotten(gate: HeldServer) -> None:
    with scripted_upstream(ANSWER) as upstream:
        with closing(Connection(gate.port)) as client:
            client.send()
            eventually("it is held", lambda: gate.state.waiting == 1)
        eventually("it is forgotten", lambda: gate.state.waiting == 0)
        gate.lend(upstream.base)
        require_ok(ask(gate.port))
        assert len(upstream.requests) == 1


def test_without_memory_those_who_wait_are_told_when_to_come_back(gate: HeldServer) -> None:
    with ThreadPoolExecutor(1) as pool, scripted_upstream(ANSWER) as upstream:
        answer = pool.submit(ask, gate.port)
        eventually("it is held", lambda: gate.state.waiting == 1)
        refuse(gate.state)
        reply: Reply = answer.result()
        assert (reply.status, reply.headers["retry-after"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "15")
        assert reply.error == {
            "message": "There is no memory.",
            "type": "server_error",
            "param": None,
            "code": "not_enough_memory",
        }
        answer = pool.submit(ask, gate.port)
        eventually("the next one is held again", lambda: gate.state.waiting == 1)
        gate.lend(upstream.base)
        require_ok(answer.result())


def test_too_many_that_wait_are_told_at_once(gate: HeldServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_state, "MOST_HELD", 1)
    with closing(Connection(gate.port)) as client:
        client.send()
        eventually("it is held", lambda: gate.state.waiting == 1)
        assert (ask(gate.port).status, ask(gate.port).error["code"]) == (503, "too_many_waiting")


def test_a_request_for_a_dead_server_waits_for_the_next(gate: HeldServer) -> None:
    with scripted_upstream() as dead:
        base = dead.base
    with ThreadPoolExecutor(1) as pool, scripted_upstream(ANSWER) as upstream:
        gate.lend(base)
        answer = pool.submit(ask, gate.port)
        eventually("it is held", lambda: gate.state.waiting == 1)
        assert not gate.state.is_loaded and gate.state.in_flight == 0
        gate.lend(upstream.base, load=2)
        require_ok(answer.result())


def test_requests_in_flight_to_a_server_that_dies_end_with_an_error(gate: HeldServer) -> None:
    with scripted_upstream(stream(event({"n": 1}), Step.DIE)) as upstream:
        gate.lend(upstream.base)
        reply = ask(gate.port)
        assert not reply.is_whole and json.loads(reply.chunks[-1][6:])["error"]["code"] == "upstream_died"
        upstream.steps = [Step.DIE]
        assert (ask(gate.port).status, ask(gate.port).error["code"]) == (502, "upstream_died")
    eventually("all are counted", lambda: gate.state.counts == (3, 3))


def test_a_server_in_use_is_not_taken_back(gate: HeldServer) -> None:
    last = threading.Event()
    with scripted_upstream(stream(event({"n": 1}), last, event({"n": 2}))) as upstream:
        gate.lend(upstream.base)
        with closing(Connection(gate.port)) as client:
            client.send()
            client.read_head()
            assert client.read_chunk() and gate.state.idle_s == 0.0
            assert not gate.state.take_back() and ask(gate.port, UNLOAD, {}).status == HTTPStatus.CONFLICT
            last.set()
            while client.read_chunk():
                continue
        eventually("it is idle", lambda: gate.state.in_flight == 0)
        assert gate.state.take_back() and not gate.state.is_loaded


def test_another_endpoint_has_it_unloaded_and_waits_until_it_is(
    gate: HeldServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_state, "SETTLED_S", 0.0)
    assert ask(gate.port, UNLOAD, {}).status == HTTPStatus.CONFLICT, "it is not loaded"
    with scripted_upstream(ANSWER) as upstream, ThreadPoolExecutor(2) as pool:
        gate.lend(upstream.base)
        document = json.loads(ask(gate.port, SERVER, method="GET").body)
        assert (document["is_loaded"], document["may_leave"], document["memory_bytes"]) == (True, True, 1000)
        unloading = pool.submit(ask, gate.port, UNLOAD, {})
        eventually("it is to leave", lambda: gate.state.is_leaving)
        request = pool.submit(ask, gate.port)
        eventually("a request waits for the next load", lambda: gate.state.waiting == 1)
        assert not unloading.done()
        gate.state.is_gone()
        assert require_ok(unloading.result()).body == b'{"unloaded": true}'
        gate.lend(upstream.base, load=2)
        require_ok(request.result())


def test_its_paths_need_the_key(gate: HeldServer) -> None:
    for path, method in ((SERVER, "GET"), (UNLOAD, "POST"), ("/v1/chat/completions", "POST"), ("/v1/models", "GET")):
        assert ask(gate.port, path, {}, method=method, authorization="Bearer wrong").status == HTTPStatus.UNAUTHORIZED
    eventually("the refused ones are counted out", lambda: health(gate)["in_flight"] == 0)
    assert health(gate) == {
        "status": "ok",
        "models": 2,
        "in_flight": 0,
        "loaded": False,
        "waiting": 0,
    }
    assert ask(gate.port, body={"model": "other"}).error["code"] == "model_not_found" and TOKEN


def test_a_state_keeps_and_yields_its_server() -> None:
    moment = 100.0
    state = ServerState(now=lambda: moment)
    woken: list[Any] = []
    assert state.enter(woken.append) is None and state.waiting == 1
    upstream = named_upstream(base="http://127.0.0.1:1")
    state.lend(upstream)
    assert woken == [None] and state.waiting == 0
    assert not state.unload_for_other(woken.append), "it was loaded just now"
    moment += server_state.SETTLED_S
    assert state.may_leave and not state.take_back(11.0)
    assert state.enter(woken.append) == upstream and not state.may_leave
    state.leave()
    assert state.idle_s == 0.0
    moment += 11.0
    assert state.take_back(11.0) and not state.take_back()
    exempt = ServerState(keep_loaded=True, now=lambda: moment)
    exempt.lend(upstream)
    moment += 100.0
    assert not exempt.unload_for_other(woken.append) and not exempt.may_leave


def test_a_lasting_refusal_ends_with_the_next_load() -> None:
    state = ServerState()
    refuse(state, lasting=True)
    with pytest.raises(Refusal, match="no memory"):
        state.enter(lambda _: None)
    state.begin()
    assert state.enter(lambda _: None) is None
