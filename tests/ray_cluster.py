"""A real Ray cluster on loopback: a head and nodes that are told apart by their addresses, and the means to kill
each."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from backend import processes, settings
from backend.launchers.cluster.requests import RESOURCE
from tests import live_processes
from tests.homes import eventually

MARK = "WHETSTONE_TEST_RAY"
STORE_BYTES = 80_000_000
"""Ray's least, about."""
SECRET = "WHETSTONE_TOKEN_TEST"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RayCluster:
    """`folder` is short, since Ray's sockets lie in it. All that a node is and has started carries a mark, by which it
    is killed all at once, as when a machine is switched off."""

    def __init__(self, nodes: int = 2, *, cores: int = 1, ray: Mapping[str, str] | None = None) -> None:
        """`cores` of each node; `ray`: Ray's own settings, as variables of every process of it."""
        self._cores, self._settings = cores, dict(ray or {})
        self.folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))
        self.port, self._id = free_port(), secrets.token_hex(4)
        self.address = f"127.0.0.1:{self.port}"
        self._ray = settings.load().engines / "ray" / "bin" / "ray"
        self._starts, self.numbers = 0, list[int]()
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        # of the studio, and so of what it starts
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        try:
            self.start_head()
            self.start_nodes(nodes)
        except BaseException:
            self.close()
            raise

    def start_head(self) -> None:
        """It takes no jobs: it stands for the studio's machine."""
        self._starts += 1
        temporary = f"--temp-dir={self.folder}/{self._starts}"
        place = ["--node-ip-address=127.0.0.1", f"--port={self.port}", temporary]
        self._start(0, "--head", *place, "--num-cpus=0", "--include-dashboard=false")

    def start_nodes(self, number: int = 2) -> None:
        """So many more, one after the other: two that start at once on one machine may choose the same ports."""
        for node in [len(self.numbers) + place + 2 for place in range(number)]:
            self.numbers.append(node)
            self._start(
                node,
                f"--address={self.address}",
                f"--node-ip-address=127.0.0.{node}",
                f"--num-cpus={self._cores}",
                f'--resources={{"{RESOURCE}": 1}}',
            )

    def restore(self, nodes: int = 2) -> None:
        """A head with so many nodes again. Nodes of a head that was killed end with it."""
        alive = [node for node in self.numbers if self.is_running(node)]
        if not self.is_running(0):
            for node in (0, *self.numbers):
                self.kill(node)
            alive = []
            self.start_head()
        self.start_nodes(nodes - len(alive))

    def is_running(self, node: int) -> bool:
        """Whether Ray's own processes of that node run; what else a node has may be there longer."""
        targets = {"raylet"} if node else {"raylet", "gcs_server"}
        return targets <= {live_processes.name(process) for process in processes.find_marked(MARK, self._mark(node))}

    def kill(self, node: int) -> None:
        """0 is the head."""
        processes.end(processes.find_marked(MARK, self._mark(node)))

    def signal(self, node: int, number: signal.Signals) -> None:
        """To all that the node is and has started."""
        for process in processes.find_marked(MARK, self._mark(node)):
            with suppress(*processes.PROCESS_ENDED):
                process.send_signal(number)

    def left(self) -> list[str]:
        """Processes of any node."""
        marks = [self._mark(node) for node in (0, *self.numbers)]
        return [live_processes.name(process) for mark in marks for process in processes.find_marked(MARK, mark)]

    def close(self) -> None:
        for node in (0, *self.numbers):
            self.kill(node)
        eventually("the end of every Ray process", lambda: self.left() == [], 30)
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(name, None)

    def log(self) -> str:
        return (self.folder / "start.log").read_text(errors="replace")[-3000:]

    def _mark(self, node: int) -> str:
        return f"{self._id}-{node}"

    def _start(self, node: int, *options: str) -> None:
        common = [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        environment = {name: value for name, value in os.environ.items() if name != SECRET} | {
            MARK: self._mark(node),
            "WHETSTONE_HOME": str(self.folder / f"node-{node}"),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **self._settings,
        }
        with (self.folder / "start.log").open("ab") as log:
            command = [str(self._ray), "start", *options, *common]
            done = subprocess.run(
                command,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=120,
            )
        assert done.returncode == 0, self.log()
