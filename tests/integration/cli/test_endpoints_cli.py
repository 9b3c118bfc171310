"""Endpoints of this machine on the command line: served, listed, shown, stopped, started, removed, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.hardware import engine_status
from backend.service import Workspace
from backend.service.jobs import supervisors
from tests.helpers.endpoint_rows import put_endpoint
from tests.homes import open_home
from tests.integration.cli.calling import one_sentence, whetstone
from tests.pricing import no_credentials


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A home in which any engine seems to be installed, no supervisor starts, and AWS is not asked."""
    no_credentials(monkeypatch, tmp_path)
    monkeypatch.setattr(engine_status, "server_program", lambda settings, variant: Path("/bin/true"))
    monkeypatch.setattr(supervisors, "ensure_running", lambda workspace: None)
    return open_home(tmp_path / "home")


def answer_of(workspace: Workspace, *arguments: str) -> Any:
    done = whetstone(workspace.settings.home, *arguments, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_one_is_served_listed_stopped_started_and_removed(workspace: Workspace) -> None:
    home = workspace.settings.home
    (served,) = answer_of(workspace, "serve", "starter", "--name", "chat", "--idle", "3", "--detach")
    assert (served["name"], served["idle_minutes"], served["state"]) == ("chat", 3.0, "starting")
    hint = whetstone(home, "serve", "starter", "--detach").stdout
    assert "chat" in hint and "No supervisor is running: `whetstone up` starts one" in hint
    assert [each["name"] for each in answer_of(workspace, "endpoints", "list")] == ["chat"]
    shown = whetstone(home, "endpoints", "show", "chat").stdout
    assert "chat: Starting." in shown and f"curl {served['url']}/" in shown
    assert answer_of(workspace, "endpoints", "stop", "chat")["state"] == "stopped"
    assert answer_of(workspace, "endpoints", "start", "chat", "--detach")["state"] == "starting"
    assert answer_of(workspace, "endpoints", "remove", "chat") == {"endpoint": "chat", "removed": True}
    assert (
        "No endpoint on this machine: `whetstone serve MODEL` makes one." in whetstone(home, "endpoints", "list").stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("endpoints", "show", "x"), "There is no endpoint `x` on this studio's machines: there is chat."),
        (("endpoints", "logs", "x"), "there is chat"),
        (("serve", "starter-draft", "--name", "chat"), "already, of starter: choose another --name, or remove it"),
        (("serve", "starter", "--port", "8750"), "with other settings: remove it first, or give another --name."),
        (("serve", "starter", "starter-draft", "--name", "two"), "--name is for one endpoint"),
        (("serve", "starter", "--name", "a b"), "--name is wrong"),
    ],
)
def test_bad_input_is_one_sentence(workspace: Workspace, arguments: tuple[str, ...], message: str) -> None:
    put_endpoint(workspace.store)
    assert message in one_sentence(whetstone(workspace.settings.home, *arguments))


def test_exports_are_printed_for_other_programs(workspace: Workspace) -> None:
    put_endpoint(workspace.store)
    home = workspace.settings.home
    for form, words in (
        ("litellm", 'api_base: "http://127.0.0.1:8701/v1"'),
        ("llama-swap", 'proxy: "http://127.0.0.1:8701"'),
        ("vllm-router", "--static-models chat"),
    ):
        assert words in whetstone(home, "endpoints", "export", "--form", form).stdout
    through = answer_of(workspace, "endpoints", "export", "chat", "--form", "litellm", "--gateway", "http://h:1/v1")
    assert 'api_base: "http://h:1/v1"' in through["text"]
