"""An endpoint with a real llama.cpp under a real supervisor: killed at each of its three processes, unloaded when
idle, woken by the first request, and stopped."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest

from backend import served_keys
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.endpoint_states import EndpointState
from backend.domain.jobs.jobs import EndpointSpec
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.serving import local_endpoints
from backend.service.serving.gateway import KeysAndServers
from backend.service.serving.local_endpoints import LocalEndpoint
from tests import live_processes
from tests.helpers.endpoint_rows import put_endpoint
from tests.helpers.running_gateway import Reply, ask, require_ok, running_gateway
from tests.homes import eventually, kill_supervisor, processes_of

LONG_MINUTES = 60.0
"""Idle minutes after which no test unloads its endpoint."""
SHORT_MINUTES = 0.05
ENGINE = "/llama-cpp/bin/"
"""Where the program of the engine is, a build of it as well as the wheel's Python."""
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 4, "stream": False}
PATH = "/v1/completions"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture
def idle_minutes() -> float:
    """After how many minutes without a request the endpoint is unloaded."""
    return LONG_MINUTES


@pytest.fixture
def port(home: Workspace, tiny: Variant, program: Path, idle_minutes: float) -> Iterator[int]:
    """The port of an endpoint that runs; it is stopped at the end."""
    variant = tiny.model_copy(update={"name": "tiny"})
    spec = EndpointSpec(
        variants=(variant,), endpoint="tiny", port=free_port(), idle_minutes=idle_minutes, memory_bytes=1
    )
    put_endpoint(home.store, spec)
    supervisors.ensure_running(home)
    eventually("it was loaded", lambda: show(home).loads >= 1)  # one of few idle minutes may be unloaded by now
    yield spec.port
    local_endpoints.stop(home, "tiny")
    supervisors.ensure_running(home)
    eventually("it is stopped", lambda: show(home).state is EndpointState.STOPPED)
    eventually("no process left", lambda: processes_of(home) == [])


def show(home: Workspace) -> LocalEndpoint:
    return local_endpoints.show(home, "tiny")


def ask_endpoint(port: int) -> Reply:
    return ask(port, PATH, BODY, authorization=f"Bearer {served_keys.find(port)}")


def logged_statuses(home: Workspace) -> list[int]:
    """The status of each answer in the endpoint's request log."""
    return [json.loads(line)["status"] for line in local_endpoints.request_log(home, "tiny").splitlines()]


def running(home: Workspace, name: str) -> list[psutil.Process]:
    """The processes of this home whose command has those words."""
    return [each for each in processes_of(home) if name in " ".join(live_processes.command(each)[:4])]


def kill(home: Workspace, name: str) -> None:
    """End the one process of this home whose command has those words, as kill -9 does."""
    (process,) = running(home, name)
    live_processes.kill([process])
    psutil.wait_procs([process])


def test_it_answers_again_whichever_process_is_killed(home: Workspace, port: int, tmp_path: Path) -> None:
    require_ok(ask_endpoint(port))
    key = served_keys.find(port)
    # 1. The engine: the request that comes then waits for the next one.
    kill(home, ENGINE)
    require_ok(ask_endpoint(port))
    # 2. The worker: the gateway waits for the next one.
    with running_gateway([], tmp_path, read=KeysAndServers(home)) as gateway:
        kill(home, "backend.worker")
        require_ok(ask(gateway.port, PATH, BODY, authorization=""))
        # 3. The supervisor: nothing is lost, and the next one goes on.
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask, gateway.port, PATH, BODY, authorization="") for _ in range(2)]
            kill_supervisor(home)
            for answer in answers:
                require_ok(answer.result())
    assert served_keys.find(port) == key, "a client's key stays"
    supervisors.ensure_running(home)
    eventually("both restarts are counted", lambda: show(home).restarts >= 2)
    eventually("all requests are counted", lambda: show(home).requests >= 3)


@pytest.mark.parametrize("idle_minutes", [SHORT_MINUTES])
def test_it_is_unloaded_when_idle_and_woken_by_the_first_request(home: Workspace, port: int) -> None:
    eventually("it is idle", lambda: show(home).state is EndpointState.IDLE)
    assert not running(home, ENGINE)
    with ThreadPoolExecutor(8) as pool:
        for answer in [pool.submit(ask_endpoint, port) for _ in range(8)]:
            require_ok(answer.result())
    eventually("both loads are counted", lambda: show(home).loads >= 2)
    # the gateway writes a line after its answer has gone
    eventually("all requests are in the log", lambda: len(logged_statuses(home)) == 8)
    assert logged_statuses(home) == [HTTPStatus.OK] * 8
    assert f"Unloaded after {SHORT_MINUTES} minutes" in local_endpoints.logs(home, "tiny")
    assert jobs.show(home, str(show(home).job)).owner == "local"
