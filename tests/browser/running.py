"""The real studio for a browser: `whetstone up` in a home of its own, with its supervisor, until the tests are done
with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from backend.service import Workspace
from backend.settings import CHECKOUT
from tests.homes import eventually, open_home, processes_of


class Studio(NamedTuple):
    """`url` without a slash at its end; `workspace` is the same home, seen from outside."""

    url: str
    workspace: Workspace


@contextmanager
def running_studio(home: Path, *options: str, **variables: str) -> Iterator[Studio]:
    """Start it with `up` and these options, wait until it answers, stop it as Ctrl-C does. No job of the home may run
    then.

    `variables` are of its environment; `{port}` in one is its own.
    """
    workspace, port = open_home(home), free_port()
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home), "WHETSTONE_NO_DEMO": "1"}
    environment.pop("DATABASE_URL", None)
    environment |= {name: value.replace("{port}", str(port)) for name, value in variables.items()}
    command = [sys.executable, "-m", "backend.cli.main", "up", "--port", str(port), "--no-browser", *options]
    with (
        (home / "studio.log").open("wb") as log,
        subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            studio = Studio(f"http://localhost:{port}", workspace)
            eventually("the studio", lambda: process.poll() is not None or answers_at(f"{studio.url}/_stcore/health"))
            assert process.poll() is None, (home / "studio.log").read_text()
            yield studio
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0, (home / "studio.log").read_text()
    assert processes_of(workspace) == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers_at(url: str) -> bool:
    """Return True if a server answers there with 200."""
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
