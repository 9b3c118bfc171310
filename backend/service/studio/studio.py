"""The studio as two processes: the supervisor and the web server, started together and stopped together.

A demonstration is the web server alone, over a home that is made for it and removed after it.
"""

from __future__ import annotations

import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from backend import logs, settings
from backend.address import is_loopback
from backend.domain.errors import PortTaken, RequestError, WhetstoneError, WorkError
from backend.domain.jobs.jobs import JobState
from backend.domain.roles import Actor
from backend.processes import SignalEvent
from backend.service.jobs import jobs, supervisors
from backend.service.studio import demo_export, engine_setup, first_run, sign_in
from backend.service.tuning import tunings
from backend.service.workspace import Workspace, system_actor
from backend.settings import CHECKOUT

EVERYWHERE = ("0.0.0.0", "::")
LOG = "studio.log"
MOST_UPLOADED_BYTES = 500_000_000
START_SECONDS = 60.0
SEARCH_SECONDS = 2.0
"""Seconds between two looks at the searches that run."""
OBSTACLE_SECONDS = 15.0
"""Seconds between attempts of a first run that cannot go on, for example while an engine is installed."""

Say = Callable[[str], None]


class StudioFailed(WorkError):
    """The web studio did not start; the lines above say why."""


def check_port(port: int) -> None:
    """Raises PortTaken where something listens there already."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise PortTaken(f"Port {port} is in use: stop what listens there, or choose another with {{}}.", "port")


def check_host(host: str, *, without_sign_in: bool) -> None:
    """Raises RequestError for an address that others reach while nobody has to sign in, and where the sign-in is set
    wrongly."""
    configuration = sign_in.read_configuration(settings.load())
    if configuration is not None:
        sign_in.read_secret(configuration)
    if configuration is not None or is_loopback(host) or without_sign_in:
        return
    raise RequestError(
        f"Nobody would have to sign in: on {host[:80]} everybody who reaches the studio could run jobs, read folders "
        f"of this machine and use its tokens. To have people sign in, {sign_in.HOW}; or leave {{}} out and reach it "
        "with `ssh -L 8501:127.0.0.1:8501 THIS-MACHINE`; or say that it is meant ({}).",
        "host",
        "without_sign_in",
    )


def begin_log() -> None:
    """The web server's log is studio.log in the home: what pages refused, and what nobody foresaw."""
    logs.start_logging(settings.load().home / LOG, to_stderr=False)
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("streamlit")]:
        logging.getLogger(name).propagate = True  # it keeps to itself what a page raised


def allowed_hosts() -> list[str]:
    """Names and origins beside those of loopback that the web server answers to; of a sign-in where it leads back
    to."""
    configuration = sign_in.read_configuration(settings.load())
    return [*settings.load().hosts, *([configuration.origin] if configuration else [])]


def names_elsewhere(chosen: settings.Settings) -> list[str]:
    """Names in WHETSTONE_HOSTS under which others reach the studio, through a proxy or a tunnel; none where the owner
    says that nobody else does."""
    written = [host if "://" in host else f"https://{host}" for host in chosen.hosts]
    names = [name for origin in written if (name := urlsplit(origin).hostname) and not is_loopback(name)]
    return [] if chosen.alone else names


def is_reached_by_others(workspace: Workspace, host: str) -> bool:
    """Tell whether others reach the studio, by its listening address, a sign-in or the names it answers to."""
    return not is_loopback(host) or bool(
        sign_in.read_configuration(workspace.settings) or names_elsewhere(workspace.settings)
    )


def _open_access_warning(workspace: Workspace, host: str) -> str | None:
    """The sentence for a studio whose names are for others while nobody has to sign in; None where that is not so, or
    was meant (`--without-sign-in` goes with another address)."""
    names = names_elsewhere(workspace.settings)
    if not names or not is_loopback(host) or sign_in.read_configuration(workspace.settings):
        return None
    return (
        f"WHETSTONE_HOSTS names {', '.join(names)}, so this studio is treated as shared, and whoever reaches it there "
        "need not sign in: have people sign in (docs/team.md), or set WHETSTONE_SHARED=0 where only you reach it."
    )


def upload_limit() -> tuple[Actor, int | None]:
    """Return the actor for uploads without sign-in, and the most bytes that one person's pages may hold, None in a
    private studio.

    Raises RequestError where WHETSTONE_ROLE is no role.
    """
    chosen = settings.load()
    return system_actor(chosen), MOST_UPLOADED_BYTES if chosen.shared else None


def serve(
    workspace: Workspace,
    port: int,
    *,
    host: str,
    browser: bool,
    say: Say,
    metrics_port: int | None = None,
    install_engines: bool = False,
) -> None:
    """Block until Ctrl-C or SIGTERM, then stop both. `install_engines` queues what is missing before the first page.

    Raises StudioFailed, SupervisorFailed.
    """
    # 1. Start the web server and, if none runs, the supervisor.
    if metrics_port is not None:
        workspace = replace(workspace, settings=workspace.settings.model_copy(update={"metrics_port": metrics_port}))
    stopping = SignalEvent.handle((signal.SIGINT, signal.SIGTERM))
    own = not supervisors.is_alive(workspace, own=True)
    first = _FirstRun(workspace, say, stopping)
    searches = _Searches(workspace, say, stopping)
    if warning := _open_access_warning(workspace, host):
        say(warning)
    if install_engines:
        engine_setup.begin(workspace)
    web = _start_web(workspace, host, port, browser=browser)
    try:
        if own:
            supervisors.start(workspace)
        _await_ready(web, port, stopping)
        say(f"Whetstone is at http://localhost:{port} (home {workspace.settings.home}); Ctrl-C stops it.")
        first.start()
        searches.start()
        # 2. Watch both until a signal.
        while not stopping.wait(1.0):
            _check_web(web)
            if not supervisors.is_alive(workspace, own=True) and not supervisors.is_drained(workspace):
                supervisors.start(workspace)
    finally:
        # 3. Stop both.
        _stop_web(web)
        if own:
            supervisors.stop(workspace)
            _report_running(workspace, say)
        say("Stopped.")


def _report_running(workspace: Workspace, say: Say) -> None:
    """A job outlives the studio."""
    for job in jobs.active(workspace):
        if job.state is JobState.RUNNING:
            say(
                f"{job.id} ({job.title}) goes on: `whetstone up` shows it again, `whetstone jobs cancel {job.id}` "
                "ends it."
            )


def serve_demonstration(port: int, *, host: str, browser: bool, say: Say) -> None:
    """Block until Ctrl-C or SIGTERM; nothing is left behind. Raises StudioFailed, NotFound."""
    stopping = SignalEvent.handle((signal.SIGINT, signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="whetstone-demonstration-") as folder:
        workspace = demo_export.seed(Path(folder), demo_export.folder_here(settings.load().recorded))
        web = _start_web(workspace, host, port, browser=browser)
        try:
            _await_ready(web, port, stopping)
            say(f"A demonstration of Whetstone is at http://localhost:{port}, read-only; Ctrl-C stops it.")
            while not stopping.wait(1.0):
                _check_web(web)
        finally:
            _stop_web(web)
            say("Stopped.")


class _FirstRun(threading.Thread):
    """Carries the demo on beside the studio, whose first page waits for nothing: a hub may take seconds to answer. What
    stands in the demo's way is said once and looked at again after a while."""

    def __init__(self, workspace: Workspace, say: Say, stopping: threading.Event) -> None:
        super().__init__(name="first-run", daemon=True)
        self._workspace, self._say, self._stopping = workspace, say, stopping
        self._said = ""

    def run(self) -> None:
        wait = self._attempt(first_run.begin)
        while not self._stopping.wait(wait):
            wait = self._attempt(first_run.advance)

    def _attempt(self, step: Callable[[Workspace], object]) -> float:
        """Run one step and return the seconds until the next attempt."""
        try:
            step(self._workspace)
        except WhetstoneError as error:
            if engine_setup.find_under_way(self._workspace):
                return 1.0
            if str(error) != self._said:
                self._say(f"The demo waits: {error}")
            self._said = str(error)
            return OBSTACLE_SECONDS
        return 1.0


class _Searches(threading.Thread):
    """Carries searches for the best stack on beside the studio, whether or not a page shows them."""

    def __init__(self, workspace: Workspace, say: Say, stopping: threading.Event) -> None:
        super().__init__(name="searches", daemon=True)
        self._workspace, self._say, self._stopping = workspace, say, stopping
        self._said = ""

    def run(self) -> None:
        while not self._stopping.wait(SEARCH_SECONDS):
            try:
                tunings.advance_all(self._workspace)
            except WhetstoneError as error:
                if str(error) != self._said:
                    self._say(f"A search waits: {error}")
                self._said = str(error)
                self._stopping.wait(OBSTACLE_SECONDS)


def _start_web(workspace: Workspace, host: str, port: int, *, browser: bool) -> subprocess.Popen[bytes]:
    """Streamlit in a process group of its own, so that Ctrl-C reaches it once, from here."""
    # 1. The command of Streamlit.
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app/web/studio.py",
        "--server.address",
        host,
        "--server.port",
        str(port),
    ]
    command += ["--server.headless", "false" if browser and sys.stdout.isatty() else "true"]
    # 2. Its environment; a demonstration has no other database.
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    if is_reached_by_others(workspace, host):
        named = [*allowed_hosts(), *(() if host in EVERYWHERE else (host,))]
        environment |= {"WHETSTONE_HOSTS": ",".join(named), "WHETSTONE_SHARED": "1"}
    if workspace.read_only:
        environment.pop("DATABASE_URL", None)
    # 3. Start it in a process group of its own.
    return subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        umask=supervisors.PRIVATE,
    )


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


def _check_web(web: subprocess.Popen[bytes]) -> None:
    if web.poll() is not None:
        raise StudioFailed("The web studio ended by itself; the lines above say why.")


def _stop_web(web: subprocess.Popen[bytes]) -> None:
    web.terminate()
    try:
        web.wait(timeout=10)
    except subprocess.TimeoutExpired:
        web.kill()
        web.wait()
