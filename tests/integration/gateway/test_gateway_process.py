"""`whetstone gateway` as a process: started by the command line, with a key from it, and ended by SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from backend.service import Workspace
from backend.service.evaluations import workloads
from backend.service.serving import recorded_requests
from tests.fakes.scripted_upstream import event, scripted_upstream, stream
from tests.helpers.running_gateway import Connection, ask
from tests.helpers.serve_jobs import put_serve_job
from tests.homes import eventually, open_home
from tests.integration.cli.calling import one_sentence, whetstone

WAIT_S = 60


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path / "home")


@contextmanager
def gateway_process(workspace: Workspace, *options: str) -> Iterator[tuple[subprocess.Popen[str], int, list[str]]]:
    """The process, its port, and the lines that it said at its start."""
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    command = [sys.executable, "-m", "backend.cli.main", "gateway", *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = list[str]()
            for line in process.stderr:
                lines.append(line.strip())
                if line.startswith("Requests are logged"):
                    break
            match = re.search(r":(\d+)/v1", "".join(lines[:1]))
            assert match is not None, lines
            yield process, int(match.group(1)), lines
        finally:
            process.kill()


def requests_under_way(port: int) -> int:
    return int(json.loads(ask(port, "/health", method="GET", authorization="").body)["in_flight"])


def test_a_process_serves_with_a_key_and_drains_on_sigterm(workspace: Workspace) -> None:
    added = whetstone(workspace.settings.home, "gateway", "keys", "add", "app", "--requests-per-minute", "5", "--json")
    token = json.loads(added.stdout)["token"]
    listed = whetstone(workspace.settings.home, "gateway", "keys", "list")
    assert "app" in listed.stdout and token not in listed.stdout
    gate, last = threading.Event(), event({"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    with scripted_upstream(stream(event({"n": 1}), gate, last)) as upstream:
        put_serve_job(workspace, "j-1", {"starter": upstream.base})
        with (
            gateway_process(workspace, "--port", "0", "--drain", "30") as (process, port, lines),
            closing(Connection(port)) as client,
        ):
            assert lines[1:3] == ["It serves starter, source of starter.", "Requests need the key."]
            assert ask(port).status == 401
            client.send(authorization=f"Bearer {token}")
            client.read_head()
            client.read_chunk()
            eventually("the refused one is counted out", lambda: requests_under_way(port) == 1)
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None and process.stderr.readline().startswith("One request is under way")
            gate.set()
            assert client.read_chunk() == last and client.read_chunk() == b""
            assert process.wait(WAIT_S) == 0 and process.stderr.read() == "Stopped.\n"
    log = [json.loads(line) for line in (workspace.settings.home / "gateway.log").read_text().splitlines()]
    assert [(line["key"], line["status"], line["completion_tokens"]) for line in log] == [
        (None, 401, None),
        ("app", 200, 2),
    ]


def test_a_key_that_is_removed_while_the_gateway_runs_is_refused(workspace: Workspace) -> None:
    home = workspace.settings.home
    token = whetstone(home, "gateway", "keys", "add", "app").stdout.strip()
    with gateway_process(workspace, "--port", "0", "--log", "-") as (process, port, _):
        assert ask(port, "/v1/models", method="GET", authorization=f"Bearer {token}").status == 200
        assert whetstone(home, "gateway", "keys", "remove", "app").returncode == 0
        while ask(port, "/v1/models", method="GET", authorization=f"Bearer {token}").status == 200:
            """Read again until the gateway has read the keys again, which pytest's limit bounds."""
        assert ask(port, "/v1/models", method="GET").status == 401, "the last key's removal opens nothing"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0


def test_without_a_key_a_start_says_who_may_ask_and_what_is_logged(workspace: Workspace) -> None:
    with gateway_process(workspace, "--port", "0", "--log-content") as (_, port, lines):
        assert lines[1].startswith("Nothing is served yet") and lines[2].startswith("There is no key: every program")
        assert lines[3].endswith("gateway.log, with what is asked and answered.")
        assert ask(port, "/v1/models", method="GET", authorization="").status == 200


def test_what_was_asked_with_content_becomes_a_workload(workspace: Workspace) -> None:
    home, usage = workspace.settings.home, event({"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    with scripted_upstream(stream(usage)) as upstream:
        put_serve_job(workspace, "j-1", {"starter": upstream.base})
        with gateway_process(workspace, "--port", "0", "--log-content") as (process, port, _):
            question = {"messages": [{"role": "user", "content": "Hello"}]}
            assert ask(port, body=question, authorization="").status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    assert recorded_requests.has_content(workspace)
    summary = json.loads(whetstone(home, "gateway", "workload", "mine", "--last", "1h", "--json").stdout)
    assert (summary["kind"], summary["requests"], summary["conversations"]) == ("chat", 1, 1)
    (line,) = workloads.facts_for(workspace, summary["path"], None).first
    assert (line.prompt, line.max_tokens, line.timestamp) == ("Hello", 2, 0.0)
    assert "No request in the log fits" in one_sentence(whetstone(home, "gateway", "workload", "--model", "other"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["workload"], "or name its log with --log"),
        (["workload", "--last", "soon"], "--last is wrong: `soon` is no time"),
        (["--port", "0", "--host", "0.0.0.0"], "or leave --host out"),
        (["--port", "0", "--log", "/proc/sys/x"], "give another --log"),
        (["keys", "remove", "nobody"], "There is no key `nobody`"),
    ],
)
def test_what_is_wrong_is_one_sentence(workspace: Workspace, arguments: list[str], words: str) -> None:
    assert words in one_sentence(whetstone(workspace.settings.home, "gateway", *arguments))
