"""The gateway's door: keys in the store and the audit trail, and the servers of the jobs that run on this machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from backend.domain.errors import InvalidOptions, NotFound, PortTaken, RequestError
from backend.domain.jobs.jobs import Event
from backend.gateway import keys
from backend.gateway.options import GatewayOptions
from backend.service import Workspace
from backend.service.serving import gateway
from backend.service.serving.gateway import KeysAndServers
from backend.service.studio import audit
from backend.store import history, queue
from tests.helpers.serve_jobs import put_serve_job
from tests.homes import DATABASE, open_home


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


def test_a_key_is_stored_as_its_hash_and_its_changes_are_recorded(workspace: Workspace, tmp_path: Path) -> None:
    added = gateway.add_key(workspace, "app", requests_per_minute=60)
    (client,), servers = KeysAndServers(workspace)()
    assert (client.name, client.digest, client.requests_per_minute) == ("app", keys.digest(added.token), 60)
    assert servers == []
    (view,) = gateway.list_keys(workspace)
    assert view.owner == workspace.actor.name and client.digest not in view.model_dump_json()
    gateway.remove_key(workspace, "app")
    assert gateway.list_keys(workspace) == []
    records = [(record.action, record.kind, record.target, record.detail) for record in audit.listing(workspace)]
    assert records == [
        ("remove gateway key", "gateway key", "app", None),
        ("add gateway key", "gateway key", "app", "60 requests per minute"),
    ]
    files = [path.read_bytes() for path in tmp_path.glob(f"{DATABASE}*")]
    assert files and not any(added.token.encode() in content for content in files)


def test_what_is_wrong_with_a_key_is_said_and_nothing_is_recorded(workspace: Workspace) -> None:
    gateway.add_key(workspace, "app")
    with pytest.raises(RequestError, match="There is a key `app` already"):
        gateway.add_key(workspace, "app")
    for name in ("", " app", "a\nb", "x" * 65):
        with pytest.raises(InvalidOptions, match="1 to 64 printable characters"):
            gateway.add_key(workspace, name)
    with pytest.raises(InvalidOptions, match="at least 1"):
        gateway.add_key(workspace, "other", requests_per_minute=0)
    with pytest.raises(NotFound, match="There is no key `other`: there is app"):
        gateway.remove_key(workspace, "other")
    assert audit.count(workspace) == 1


def test_servers_are_those_of_jobs_that_run_on_this_machine(workspace: Workspace) -> None:
    reader = KeysAndServers(workspace)
    put_serve_job(workspace, "j-here", {"awq": "http://127.0.0.1:19001/v1"})
    put_serve_job(workspace, "j-loading", {})
    put_serve_job(workspace, "j-elsewhere", {"other": "http://127.0.0.1:19002"}, host="another-machine")
    put_serve_job(workspace, "j-stopping", {"bf16": "http://127.0.0.1:19003"}, state="cancelling")
    (server,) = reader()[1]
    assert (server.name, server.source, server.job) == ("awq", "source of awq", "j-here")
    assert server.base == "http://127.0.0.1:19001" and server.since > 0
    # A job that has loaded is found, and one that has ended is not any more.
    with workspace.store.session() as session:
        document = {"source": "s", "name": "late", "url": "http://127.0.0.1:19004", "served_name": "l"}
        data = {"endpoints": [document | {"ready_seconds": 1.0}]}
        history.append(session, "j-loading", [Event(kind="phase", phase="serve", data=data)])
        queue.get(session, "j-here").state = "succeeded"
    assert [server.name for server in reader()[1]] == ["late"]


def test_an_address_for_others_needs_a_key_first(workspace: Workspace) -> None:
    with pytest.raises(RequestError, match="everybody who reaches the gateway") as refused:
        gateway.run(workspace, "0.0.0.0", 0, GatewayOptions(), str)
    assert json.dumps(str(refused.value)).count("gateway keys add NAME") == 1


def test_a_port_that_is_in_use_is_refused(workspace: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortTaken, match="choose another"):
        gateway.run(workspace, "127.0.0.1", other.getsockname()[1], GatewayOptions(), str)
