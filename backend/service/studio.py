"""The studio as two processes: the supervisor and the web server, started together and stopped together."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from backend.domain.errors import PortTaken, WorkError
from backend.service import supervisors
from backend.service.workspace import Workspace
from backend.settings import CHECKOUT

START_SECONDS = 60.0


class StudioFailed(WorkError):
    """The web studio did not start; the lines above say why."""


def check_port(port: int) -> None:
    """Raises PortTaken where something listens there already."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise PortTaken(f"Port {port} is in use: stop what listens there, or choose another with --port.")


def serve(workspace: Workspace, port: int, *, host: str, browser: bool, say: Callable[[str], None]) -> None:
    """Block until Ctrl-C or SIGTERM, then stop both. Raises StudioFailed, SupervisorFailed."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    own = not supervisors.alive(workspace)
    if own:
        supervisors.start(workspace)
    web = _start_web(host, port, browser=browser)
    try:
        _await_ready(web, port, stopping)
        say(f"Whetstone is at http://localhost:{port} (home {workspace.settings.home}); Ctrl-C stops it.")
        _watch(workspace, web, stopping)
    finally:
        _stop_web(web)
        if own:
            supervisors.stop(workspace)
        say("Stopped.")


def _start_web(host: str, port: int, *, browser: bool) -> subprocess.Popen[bytes]:
    """Streamlit in a process group of its own, so that Ctrl-C reaches it once, from here."""
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.address", host, "--server.port", str(port)]
    command += ["--server.headless", "false" if browser and sys.stdout.isatty() else "true"]
    return subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


def _await_ready(web: subprocess.Popen[bytes], port: int, stopping: threading.Event) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not stopping.is_set():
        if web.poll() is not None or time.monotonic() > deadline:
            raise StudioFailed
        if _healthy(port):
            return
        stopping.wait(0.1)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _watch(workspace: Workspace, web: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """Replace a supervisor that died; end when the web server does."""
    while not stopping.wait(1.0):
        if web.poll() is not None:
            raise StudioFailed("The web studio ended by itself; the lines above say why.")
        if not supervisors.alive(workspace):
            supervisors.start(workspace)


def _stop_web(web: subprocess.Popen[bytes]) -> None:
    web.terminate()
    try:
        web.wait(timeout=10)
    except subprocess.TimeoutExpired:
        web.kill()
        web.wait()
