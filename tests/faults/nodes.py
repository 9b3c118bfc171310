"""A Ray cluster of the fault campaign: a head that takes no jobs, two nodes that do, and what is left on them.

It outlives sites: a node takes seconds to start, so that only what a fault ended is started again.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backend.domain.errors import WhetstoneError
from backend.launchers.cluster import launcher
from backend.launchers.cluster.requests import Node
from backend.settings import Settings
from tests.faults.supervise import RAY_CLOCKS
from tests.ray_cluster import RayCluster

NODES, CORES = 2, 2
TEND_S, POLL_S, READY_S = 5.0, 0.2, 30.0
ADDRESS = re.compile(r"\(127\.0\.0\.(\d+)\)$")


class Nodes:
    """Nodes are numbered by the last part of their address; 0 is the head."""

    def __init__(self) -> None:
        self._ray = RayCluster(NODES, cores=CORES, ray=RAY_CLOCKS)
        self.address = self._ray.address
        self._client = launcher.make_client(Settings(home=self._ray.folder, ray_address=self.address), "asked.log")
        self._tended = 0.0
        self.mine = threading.Lock()
        """Of whoever uses it: what a fault does to it is one seed's alone."""

    def close(self) -> None:
        self._client.close()
        self._ray.close()

    def number(self, place: str) -> int | None:
        """Of the node with that name (`Handle.place`); None where it names none."""
        match = ADDRESS.search(place)
        return int(match[1]) if match else None

    def kill(self, node: int) -> None:
        """Switch it off: all that runs there ends at once."""
        self._ray.kill(node)

    def pause(self, *nodes: int) -> Callable[[], None]:
        """Cut them off: nothing runs there until the answer is called. All of the cluster where none is named."""
        chosen = nodes or (0, *self.standing())
        for node in chosen:
            self._ray.signal(node, signal.SIGSTOP)

        def wake() -> None:
            for node in chosen:
                self._ray.signal(node, signal.SIGCONT)

        return wake

    def standing(self) -> list[int]:
        return [node for node in self._ray.numbers if self._ray.is_running(node)]

    def tend(self) -> None:
        """Now and then: start what is gone, as the service manager of a machine does."""
        if time.monotonic() - self._tended > TEND_S:
            self._restart()
            self._tended = time.monotonic()

    def restore(self) -> None:
        """Return once the head knows of as many nodes as there were. Raises AssertionError where a node does not
        start."""
        end = time.monotonic() + 4 * READY_S
        while True:
            self._restart()
            soon = min(end, time.monotonic() + READY_S)
            while time.monotonic() < soon:
                if len(self._known()) >= NODES:
                    return
                time.sleep(POLL_S)
            assert time.monotonic() < end, self._ray.log()
            for node in set(self.standing()) - self._known():  # it was away for longer than its head waits
                self.kill(node)

    def keepers(self) -> list[str]:
        """The names of those that the cluster has, on a node or waiting for one. Raises WorkError."""
        return [str(name) for name in self._client.ask("named")]

    def attempts(self, job: str = "*") -> list[Path]:
        """The folders of attempts on the disks of nodes that stand."""
        spools = [self._ray.folder / f"node-{node}" / "spool" for node in self.standing()]
        return [path for spool in spools for path in sorted(spool.glob(f"*/{job}/*"))]

    def _restart(self) -> None:
        self._ray.restore(NODES)

    def _known(self) -> set[int]:
        """Numbers of those nodes that the head takes for alive and that take jobs."""
        with suppress(WhetstoneError):
            nodes = [Node(**node) for node in self._client.ask("nodes")]
            return {int(node.address.rpartition(".")[2]) for node in nodes if node.takes_jobs}
        return set()
