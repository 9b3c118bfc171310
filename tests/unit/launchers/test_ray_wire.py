"""What a bridge writes to the studio is JSON: whatever else comes, nothing of it runs, and the cluster is away."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.launchers.cluster import client as clients
from backend.launchers.cluster.client import CallFailed, Client, ClusterUnreachable
from backend.launchers.cluster.inside import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
BRIDGE = """
import json, sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
pipe.send_bytes(b'[0, "value", null]')
number, operation, arguments = json.loads(pipe.recv_bytes())
{answer}
pipe.recv_bytes()
"""
"""A bridge that joins at once and answers one request in its own way."""


@given(JSON)
def test_what_is_sent_is_received(value: Any) -> None:
    here, there = Pipe()
    with here, there:
        wire.send(here, 1, "value", value)
        assert wire.receive(there, 3) == [1, "value", value]


def test_a_tuple_comes_as_a_list_and_what_is_no_json_is_not_sent() -> None:
    here, there = Pipe()
    with here, there:
        wire.send(here, 1, "value", [("a", 2, b"\x00\xff")])
        assert wire.receive(there, 3)[2] == [["a", 2, b"\x00\xff"]]
        with pytest.raises(ValueError, match="object is no JSON"):
            wire.send(here, 1, "value", object())


@given(
    st.binary(min_size=1, max_size=60)
    | st.sampled_from([b"[" * 100_000, b"[1,2]", b"{}", b'[1,2,{"$bytes":"?"}]', b"3"])
)
def test_what_is_no_message_is_refused_with_a_value_error(text: bytes) -> None:
    here, there = Pipe()
    with here, there:
        here.send_bytes(text)
        with pytest.raises(ValueError):
            raise ValueError(wire.receive(there, 3))


@pytest.fixture
def ask_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a client gets of a bridge that answers by these lines."""
    created: list[Client] = []

    def ask(answer: str) -> Any:
        script = tmp_path / "bridge.py"
        script.write_text(BRIDGE.format(answer=answer))
        monkeypatch.setattr(clients, "BRIDGE", script)
        created.append(Client("127.0.0.1:6379", lambda: Path(sys.executable), tmp_path / "ray.log"))
        return created[-1].ask("nodes")

    yield ask
    for each in created:
        each.close()


def test_a_pickle_from_the_bridge_runs_nothing(ask_bridge: Any, tmp_path: Path) -> None:
    """What `Connection.recv` would have run: a call of `os.mkdir`."""
    ran = tmp_path / "ran"
    pickled = f"cos\nmkdir\n(V{ran}\ntR.".encode()
    with pytest.raises(ClusterUnreachable, match="broke off"):
        ask_bridge(f"pipe.send_bytes({pickled!r})")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        ('pipe.send_bytes(json.dumps([number, "failed", "no space"]).encode())', CallFailed),
        ('pipe.send_bytes(json.dumps([number, "another", "x"]).encode())', ClusterUnreachable),
        ("pipe.send_bytes(b'[' * 100000)", ClusterUnreachable),
    ],
)
def test_an_answer_of_another_kind_is_one_of_ours(ask_bridge: Any, answer: str, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        ask_bridge(answer)


def test_an_answer_is_passed_on(ask_bridge: Any) -> None:
    row = {"id": "n", "content": {"$bytes": "AP8="}}
    assert ask_bridge(f'pipe.send_bytes(json.dumps([number, "value", [{row!r}]]).encode())') == [
        {"id": "n", "content": b"\x00\xff"}
    ]
