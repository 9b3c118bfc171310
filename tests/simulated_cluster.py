"""A cluster without Ray: keepers of this process, whose workers are what a test does in their channels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from backend.channel import JobChannel
from backend.launchers.cluster.client import ActorGone, CallFailed, ClusterUnreachable
from backend.launchers.cluster.inside.keeper import Keeper
from backend.launchers.cluster.requests import RESOURCE, Node

NODE = Node("n1", "node-1", "10.0.0.1", True, {"CPU": 8.0, "memory": 64e9, RESOURCE: 1.0})


class Idle(Keeper):
    """A keeper of which the test is the worker: it says `code` when it has ended."""

    code: int | None = None
    begun = False
    sent: dict[str, bytes]
    missing: tuple[str, ...] = ()
    asked: bool | None = None

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def worker(self) -> JobChannel:
        return JobChannel(self._folder)

    def where(self) -> dict[str, str]:
        return {"host": "node-1", "address": "10.0.0.1"}

    def lacks(self, **options: Any) -> dict[str, Any]:
        return {**super().lacks(**options), "missing": list(self.missing)}

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        if not name.startswith("/"):
            super().write(name, offset, content, mtime_ns)
            return
        self.sent = {**getattr(self, "sent", {}), name: content}

    def begin(self, folders: list[str], **_: Any) -> None:
        if not self.begun:
            self.begun = True
            for name in folders:
                (self._folder / name).mkdir()
            (self._folder / "log.txt").touch()

    def inspect(
        self, patterns: list[str], drop: list[str], resume_patterns: list[str], frozen: int | None = None
    ) -> dict[str, Any]:
        return {**super().inspect(patterns, drop, resume_patterns, frozen), "begun": self.begun, "code": self.code}

    def ask(self, *, force: bool) -> None:
        self.asked = force


class SimulatedCluster:
    """`full`: no node takes a keeper; `broken`: what the next questions raise; a head that is replaced `forgets`."""

    def __init__(self) -> None:
        self.nodes, self.keepers, self.full = [NODE], dict[str, Idle](), False
        self.broken: list[Exception] = []
        self.ever: list[Idle] = []
        self.requests: list[dict[str, Any]] = []
        self.calls: list[tuple[str, float]] = []
        """Methods of keepers that were called, and for how long each was waited."""

    def forgets(self) -> None:
        self.keepers.clear()

    def ask(self, operation: str, limit_s: float = 10.0, **arguments: Any) -> Any:
        self._break()
        name = arguments.get("name", "")
        match operation:
            case "nodes":
                return [node._asdict() for node in self.nodes]
            case "named":
                return list(self.keepers)
            case "end":
                del self.keepers[name]
            case "start":
                self.requests.append(arguments["request"])
                if name not in self.keepers:
                    # Else a keeper ends this process, pytest's, as it ends its own on a node.
                    self.keepers[name] = Idle(**{**arguments["arguments"], "alone_s": math.inf})
                    self.ever.append(self.keepers[name])
        return None

    def call(self, name: str, method: str, limit_s: float = 10.0, /, **arguments: Any) -> Any:
        self._break()
        self.calls.append((method, limit_s))
        if name not in self.keepers:
            raise ActorGone(f"Failed to look up actor with name '{name}'.")
        if self.full:
            raise ClusterUnreachable("Get timed out.")
        try:
            return getattr(self.keepers[name], method)(**arguments)
        except OSError as error:
            raise CallFailed(str(error)) from None

    def _break(self) -> None:
        if self.broken:
            raise self.broken.pop(0)
