"""Runs a server process in a process group of its own, watches it, and ends it with everything it started.

The group is in the worker's session, so that a supervisor that ends the session ends it too; WHETSTONE_JOB is
inherited. The worker starts the keeper (`server_keeper.py`), which starts the server and ends it when the worker ends.
Knows nothing of vLLM or HTTP.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil

from backend import processes
from backend.domain.errors import PortTaken

KEEPER = Path(__file__).with_name("server_keeper.py")
SAMPLE_SECONDS = 1.0
SOCKET_ROOM = 40
"""Longest name of a temporary folder: a Unix socket's path has at most 107 characters, and our folder's name and a
ZeroMQ socket's follow."""
KEEPER_SECONDS = 10.0
"""Seconds that the keeper needs after the grace to end every process and exit."""


class ServerProcess:
    """One command under a keeper. Use as a context manager, or call `stop`, which may be called twice.

    `environment` is the complete environment, as for `subprocess`. The command's working directory, also its TMPDIR, is
    a private folder that is removed with the process; `links` are symbolic links in it, by name.
    """

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        links: Mapping[str, Path] | None = None,
        grace_s: float = 10.0,
    ) -> None:
        self._environment = dict(environment)
        preload = self._environment.pop("LD_PRELOAD", None)
        self._command = ["/usr/bin/env", f"LD_PRELOAD={preload}", *command] if preload else command
        self._links = dict(links or {})
        self._log = log
        self._grace_s = grace_s
        self._keeper: subprocess.Popen[bytes] | None = None
        self._scratch: str | None = None
        self._peak = 0
        self._done = threading.Event()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the command; its output goes straight to the log."""
        # 1. Make the private folder.
        self._scratch = scratch = tempfile.mkdtemp(prefix="whetstone-", dir=_short_folder())
        keeper = [sys.executable, "-I", "-S", str(KEEPER), str(os.getpid()), str(self._grace_s), scratch]
        self._log.parent.mkdir(parents=True, exist_ok=True)

        # 2. Start the keeper, which starts the command.
        try:
            for name, target in self._links.items():
                Path(scratch, name).symlink_to(target)
            with self._log.open("ab") as log:
                self._keeper = subprocess.Popen(
                    [*keeper, *self._command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=scratch,
                    env={**self._environment, "TMPDIR": scratch},
                    process_group=0,
                )
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

        # 3. Watch its memory and its end.
        threading.Thread(target=self._sample, args=(self._keeper.pid,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The keeper's process id, which is also that of the process group."""
        if self._keeper is None:
            raise RuntimeError("the process was not started")
        return self._keeper.pid

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory of all processes together (`processes.usage`), sampled every second."""
        return self._peak

    def poll(self) -> int | None:
        """Return the exit code (128 + n if signal n ended it), or None while it runs."""
        return self._keeper.poll() if self._keeper else None

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code as soon as the process ends, or None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._keeper.wait(timeout_s) if self._keeper else None
        return None

    def stop(self) -> int | None:
        """Send SIGTERM, then SIGKILL after the grace; return the exit code when every process has ended."""
        self._done.set()
        if self._keeper is None:
            return None
        tree = processes.list_tree(self._keeper.pid)
        self._keeper.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(self._grace_s + KEEPER_SECONDS)
        self._end_group(tree)
        return self._keeper.wait()

    def _end_group(self, tree: list[psutil.Process]) -> None:
        """End whatever is left if the keeper was itself killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        processes.end(tree)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _sample(self, pid: int) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            if self.poll() is not None:
                self._end_group([])
                return
            self._peak = max(self._peak, processes.usage(pid).rss_bytes)


def free_port() -> int:
    """Return a loopback port that was free a moment ago; another process may take it, so the caller must be ready to
    try again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raise PortTaken if something listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(
                f"Port {port} is not free ({error.strerror}): stop what uses it, or give another with {{}}.", "port"
            ) from None


def _short_folder() -> str:
    """Return the folder for temporary files, or /tmp if its name is too long for a socket in it."""
    return tempfile.gettempdir() if len(tempfile.gettempdir()) <= SOCKET_ROOM else "/tmp"
