"""Endpoints of this machine by the service: names, ports and settings that are taken, what is refused, what is seen."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from backend.domain.errors import (
    EngineMissing,
    InvalidOptions,
    NotAllowed,
    NotEnoughMemory,
    NotFound,
    NotNow,
    PortTaken,
    RequestError,
)
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.endpoint_states import EndpointState
from backend.domain.jobs.jobs import EndpointSpec, Event, JobState
from backend.domain.machine.device import GIB
from backend.domain.roles import Actor, Role
from backend.hardware import engine_status, probe
from backend.present.endpoints import exports, words
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.serving import local_endpoints
from backend.service.serving.gateway import KeysAndServers
from backend.store import audit, leases
from backend.store.audit import AuditFilter
from backend.store.serving import endpoint_rows
from tests import studio
from tests.helpers.endpoint_rows import PORT, endpoint_spec, put_endpoint
from tests.homes import open_home

BUSY = 8888
"""A port on which something listens."""


@pytest.fixture
def served_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A home in which any engine seems to be installed, and each port but one to be free."""
    monkeypatch.setattr(local_endpoints, "_is_free", lambda port: port != BUSY)
    monkeypatch.setattr(engine_status, "server_program", lambda settings, variant: Path("/bin/true"))
    return open_home(tmp_path / "home")


def put_job(served_home: Workspace, state: JobState, **fields: object) -> None:
    """Give the endpoint `chat` a job in that state that has reported its figures."""
    data = {"loads": 2, "restarts": 1, "requests": 7, "failed_requests": 1, "loaded_s": 30.0}
    served = {"starter": {"generation_tokens": 12.0}}
    events = [Event(kind="progress", data={**data, "served": served}), Event(kind="phase", phase="idle", message="No.")]
    job = studio.put(served_home, endpoint_spec(), "Endpoint chat", state, events=events)
    with served_home.store.session() as session:
        row, _ = endpoint_rows.get(session, "chat")
        row.job_id, row.started_at = job.id, leases.clock(session) - timedelta(hours=2)
        for name, value in fields.items():
            setattr(row, name, value)
        session.add(row)


def test_one_is_added_once_and_started_again(served_home: Workspace) -> None:
    added = local_endpoints.add(served_home, "starter", keep_loaded=True)
    assert (added.name, added.source, added.state) == ("starter", "starter", EndpointState.STARTING)
    assert added.url == f"http://127.0.0.1:{PORT}/v1" and added.keep_loaded and added.idle_minutes == 15.0
    assert local_endpoints.add(served_home, "starter") == added
    assert str(local_endpoints.stop(served_home, "starter").state) == "stopped"
    assert local_endpoints.add(served_home, "starter").state is EndpointState.STARTING
    with served_home.store.read() as session:
        spec = EndpointSpec.model_validate_json(endpoint_rows.get(session, "starter")[0].spec)
        actions = [row.action for row in audit.list_records(session, AuditFilter(), limit=9)]
    assert spec.variants[0].name == "starter" and spec.memory_bytes > 0
    assert actions == ["start local endpoint", "stop local endpoint", "start local endpoint", "add local endpoint"]


def test_names_settings_and_ports_that_are_taken_are_refused(served_home: Workspace) -> None:
    local_endpoints.add(served_home, "starter", name="chat", port=PORT)
    with pytest.raises(RequestError, match=r"an endpoint `chat` already, of starter: choose another name, or remove"):
        local_endpoints.add(served_home, "starter-draft", name="chat")
    with pytest.raises(RequestError, match="serves starter already, with other settings"):
        local_endpoints.add(served_home, "starter", idle_minutes=3)
    with pytest.raises(PortTaken, match="is that of the endpoint `chat`"):
        local_endpoints.add(served_home, "starter-draft", port=PORT)
    with pytest.raises(PortTaken, match="is in use: stop what"):
        local_endpoints.add(served_home, "starter-draft", port=BUSY)
    second = local_endpoints.add(served_home, "starter-draft")
    assert second.url == f"http://127.0.0.1:{PORT + 1}/v1"


def test_a_port_on_which_something_listens_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not local_endpoints._is_free(port)
    assert local_endpoints._is_free(port)


def test_a_variant_of_a_name_that_is_taken_gets_a_number(served_home: Workspace) -> None:
    put_endpoint(served_home.store, endpoint_spec("starter", source="a-0", port=8800))
    assert local_endpoints.add(served_home, "starter").name == "starter-2"


def test_bad_input_is_refused_before_anything_is_written(
    served_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidOptions, match="Name is wrong"):
        local_endpoints.add(served_home, "starter", name="../x")
    with pytest.raises(RequestError, match="is an address, which answers already"):
        local_endpoints.add(served_home, "http://127.0.0.1:1")
    with pytest.raises(NotFound, match="there is none"):
        local_endpoints.stop(served_home, "nothing")
    with pytest.raises(NotAllowed, match="may not serve models"):
        local_endpoints.add(served_home.acting_as(Actor(name="v", role=Role.VIEWER)), "starter")
    monkeypatch.setattr(probe, "total_memory", lambda: GIB // 1000)
    with pytest.raises(NotEnoughMemory, match="choose something smaller"):
        local_endpoints.add(served_home, "starter")
    monkeypatch.undo()
    with pytest.raises(EngineMissing):
        local_endpoints.add(open_home(tmp_path / "bare", engines=tmp_path / "none"), "starter")
    assert local_endpoints.listing(served_home) == []


def test_one_whose_files_are_gone_is_not_started(served_home: Workspace) -> None:
    put_endpoint(served_home.store, to_run=False)
    with pytest.raises(NotFound, match="`whetstone endpoints remove chat` removes this endpoint"):
        local_endpoints.start(served_home, "chat")


def test_figures_are_those_of_all_its_jobs_and_the_cost_that_of_the_machine(served_home: Workspace) -> None:
    priced = served_home.acting_as(served_home.actor)
    object.__setattr__(priced, "settings", served_home.settings.model_copy(update={"price_per_hour": 1.5}))
    put_endpoint(served_home.store, loads=1, requests=3, restarts=1)
    put_job(served_home, JobState.RUNNING)
    view = local_endpoints.show(priced, "chat")
    assert (view.state, view.reason) == (EndpointState.IDLE, "No.")
    assert (view.loads, view.requests, view.failed_requests, view.restarts) == (3, 10, 1, 2)
    assert view.generated_tokens == 12 and view.cost is not None and round(view.cost, 2) == 3.0
    put_job(served_home, JobState.FAILED, reason="It ended 6 times in a row.", loads=3)
    view = local_endpoints.show(served_home, "chat")
    assert (view.state, view.reason, view.loads, view.cost) == (
        EndpointState.FAILED,
        "It ended 6 times in a row.",
        3,
        None,
    ), "the counts of a job whose end was decided upon are among the endpoint's"


def test_the_gateway_asks_those_that_are_to_run_wherever_they_are_in_their_life(served_home: Workspace) -> None:
    put_endpoint(served_home.store)
    put_endpoint(served_home.store, endpoint_spec("stopped", port=8710), to_run=False)
    put_endpoint(served_home.store, endpoint_spec("failed", port=8711), reason="no")
    put_endpoint(served_home.store, endpoint_spec("far", port=8712), host="elsewhere")
    _, (server,) = KeysAndServers(served_home)()
    assert (server.name, server.source, server.base, server.is_restarted) == (
        "chat",
        "starter",
        f"http://127.0.0.1:{PORT}",
        True,
    )


def test_logs_are_empty_before_its_first_job(served_home: Workspace) -> None:
    put_endpoint(served_home.store)
    assert local_endpoints.logs(served_home, "chat") == "" and local_endpoints.request_log(served_home, "chat") == ""
    path = served_home.settings.home / local_endpoints.REQUEST_LOGS / "chat.log"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(100)))
    assert local_endpoints.request_log(served_home, "chat", tail_bytes=40) == '{"number": 98}\n{"number": 99}\n'


def test_its_job_is_neither_resumed_nor_cloned(served_home: Workspace) -> None:
    put_endpoint(served_home.store)
    put_job(served_home, JobState.FAILED)
    job = str(local_endpoints.show(served_home, "chat").job)
    for act in (jobs.resume, jobs.clone, jobs.retry):
        with pytest.raises(NotNow, match="`whetstone endpoints start chat` gives it another one"):
            act(served_home, job)


def test_a_restored_endpoint_waits_for_a_person(served_home: Workspace) -> None:
    put_endpoint(served_home.store)
    served_home.store.run(endpoint_rows.hold_restored)
    assert local_endpoints.show(served_home, "chat").state is EndpointState.STOPPED


def test_exports_name_each_endpoint_as_its_reader_wants_it(served_home: Workspace, starter_target: Path) -> None:
    variant = Variant(name="chat", source="starter", kind="model", model_path=str(starter_target))
    put_endpoint(served_home.store, endpoint_spec().model_copy(update={"variants": (variant,)}))
    (exported,) = local_endpoints.list_exported(served_home)
    assert (exported.base, exported.key_variable) == (f"http://127.0.0.1:{PORT}", "WHETSTONE_KEY_CHAT")
    (through,) = local_endpoints.list_exported(served_home, ["chat"], "http://127.0.0.1:8600/v1")
    assert (through.base, through.key_file) == ("http://127.0.0.1:8600", None)
    both = [exported._replace(key_file="/k/1"), exported._replace(name="b", base="http://127.0.0.1:2", key_file="/k/2")]
    assert "--static-backends http://127.0.0.1:8701,http://127.0.0.1:2 --static-models chat,b" in exports.vllm_router(
        both
    )
    assert "Each endpoint has a key of its own" in exports.vllm_router(both)
    routed = yaml.safe_load(exports.litellm(both))["model_list"][0]
    assert (routed["model_name"], routed["litellm_params"]["api_base"]) == ("chat", f"http://127.0.0.1:{PORT}/v1")
    assert routed["litellm_params"]["api_key"] == "os.environ/WHETSTONE_KEY_CHAT"
    peer = yaml.safe_load(exports.llama_swap(both))["peers"]["chat"]
    assert (peer["proxy"], peer["models"]) == (f"http://127.0.0.1:{PORT}", ["chat"])
    assert peer["apiKey"] == "${env.WHETSTONE_KEY_CHAT}" and 'CHAT="$(cat /k/1)"' in exports.llama_swap(both)
    assert [yaml.safe_load(write([])) for write in (exports.litellm, exports.llama_swap, exports.vllm_router)] == [
        {"model_list": []},
        {"peers": {}},
        None,
    ]


def test_words_say_what_it_does_and_costs() -> None:
    assert set(words.SENTENCES) == set(EndpointState)
    assert words.counts(requests=1, failed=1, loads=2, restarts=0, loaded_s=90.0) == (
        "1 request (1 failed), 2 loads, 0 restarts, loaded for 90 s"
    )
    assert words.cost(2.0, 1.0) == "The machine cost 2.00 since then, at 1.00 an hour."
