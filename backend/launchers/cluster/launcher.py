"""The launcher of a Ray cluster. It never waits for the cluster: each attempt has a follower, and `poll` returns what
the follower saw last."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from backend.channel import Channel
from backend.domain.errors import EngineMissing, WhetstoneError
from backend.domain.jobs.jobs import Handle, WorkerState
from backend.launchers.base import Launcher
from backend.launchers.cluster.client import ActorGone, Client
from backend.launchers.cluster.follower import PLACED_S, AttemptFollower, ClusterClient, Setup
from backend.launchers.cluster.inside import keeper
from backend.settings import CHECKOUT, Settings

PASSED_VARIABLES = ("WHETSTONE_QUALITY_FLOOR", "WHETSTONE_BEARER_ENV", "HF_HUB_OFFLINE")
"""Variables of the studio that workers get. None is a secret: those a node has in its own environment, by the same
names."""
STOP_S = 5.0
"""Seconds that a follower may take to end its poll; beyond that it may leave an idle keeper behind."""
SWEEP_S = 15.0
"""Seconds that one keeper may take to end its worker."""
ENDS = "ray ends"
"""The name of threads that end keepers."""


def make_client(settings: Settings, log: str = "ray.log") -> Client:
    """Make the client of the cluster in WHETSTONE_RAY_ADDRESS; Ray's messages about the connection go to that file of
    the home."""
    assert settings.ray_address is not None

    def python() -> Path:
        path = settings.engines / "ray" / "bin" / "python"
        if not path.exists():
            raise EngineMissing("The engine `ray` is not installed: install it with `whetstone engines install ray`.")
        return path

    return Client(settings.ray_address, python, settings.home / log)


class RayLauncher(Launcher):
    """A handle's data: `keeper`, its name in the cluster; `folder` and `attempt` of the channel."""

    name, places = "ray", True

    def __init__(self, settings: Settings, cluster: ClusterClient | None = None, python: str = sys.executable) -> None:
        """`python` starts workers on every node."""
        self._settings, self._cluster, self._python = settings, cluster or make_client(settings), python
        self._followers: dict[str, AttemptFollower] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._ending: dict[str, threading.Thread] = {}
        """Threads that end other homes' keepers, by the keeper's name."""

    @cached_property
    def _setup(self) -> Setup:
        variables = {name: value for name, value in os.environ.items() if name in PASSED_VARIABLES}
        return Setup(str(CHECKOUT), self._python, keeper.digest(CHECKOUT), str(self._settings.home), variables)

    @cached_property
    def _key(self) -> str:
        """Return the key of this home among all that use the cluster."""
        return hashlib.sha256(f"{socket.gethostname()}:{self._settings.home}".encode()).hexdigest()[:12]

    def start(self, job_id: str, channel: Channel) -> Handle:
        folder = Path(channel.address)
        name = f"{self._key}:{job_id}:{folder.name}"
        handle = Handle(
            launcher=self.name,
            place="the Ray cluster",
            data={"keeper": name, "folder": str(folder.parent), "attempt": int(folder.name)},
        )
        self._follow(handle)
        return handle

    def poll(self, handle: Handle) -> WorkerState:
        return self._follow(handle).state

    def cancel(self, handle: Handle, *, force: bool) -> None:
        self._follow(handle).cancel(force=force)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        """End the job's keepers. One that does not answer now ends its worker by itself, with its node or after long
        silence."""
        mine, limit_s = f"{self._key}:{job_id}:", SWEEP_S
        for name in [name for name in self._followers if name.startswith(mine)]:
            follower = self._followers.pop(name)
            follower.stop()
            self._threads.pop(name).join(STOP_S)
            if not follower.placed:  # what waits for a node answers nobody, and would hold up all other jobs
                limit_s = PLACED_S
        try:
            self._end((name for name in self._cluster.ask("named") if name.startswith(mine)), limit_s)
        except WhetstoneError as error:
            logging.warning("%s: %s", job_id, error)

    def sweep_others(self, live_jobs: Collection[str]) -> None:
        """End keepers of jobs that were given up, in a thread: the supervisor does not wait for the cluster."""

        def given_up() -> Iterator[str]:
            for name in self._cluster.ask("named"):
                key, job, _ = name.split(":")
                if key == self._key and job not in live_jobs and name not in self._followers:
                    yield name

        self._end_in_thread("what was given up", given_up)

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        """End the keeper, which would keep its node and go on with what is repeated. One that does not answer ends by
        itself."""
        name = str(handle.data["keeper"])
        ending = self._ending.get(name)
        if ending is None:
            self._ending[name] = self._end_in_thread(name, lambda: [name])
        elif not ending.is_alive():
            del self._ending[name]
            return True
        return False

    def _end_in_thread(self, what: str, names: Callable[[], Iterable[str]]) -> threading.Thread:
        """End these keepers in a thread of its own."""

        def end() -> None:
            try:
                self._end(names())
            except WhetstoneError as error:
                logging.warning("%s: %s", what, error)

        thread = threading.Thread(target=end, daemon=True, name=ENDS)
        thread.start()
        return thread

    def _end(self, names: Iterable[str], limit_s: float = SWEEP_S) -> None:
        """End these keepers. Raises WorkError if the cluster does not answer."""
        for name in names:
            with suppress(WhetstoneError):
                self._cluster.call(name, "close", limit_s)
            with suppress(ActorGone):
                self._cluster.ask("end", name=name)

    def _follow(self, handle: Handle) -> AttemptFollower:
        name = str(handle.data["keeper"])
        if name not in self._followers:
            follower = AttemptFollower(
                self._cluster, name, Channel(Path(handle.data["folder"]), handle.data["attempt"]), self._setup
            )
            self._followers[name] = follower
            self._threads[name] = threading.Thread(target=follower.follow, daemon=True, name=name)
            self._threads[name].start()
        return self._followers[name]
