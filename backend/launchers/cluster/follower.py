"""Follows one attempt on a cluster in a thread of its own: has it placed, checks its node, begins it, copies its
channel, and sees its end.

What Ray says is a hint. A worker has ended when its keeper says with which code, and its result and output are in the
channel here. It is gone when Ray says so repeatedly, or nothing was heard of it for so long that its node must have
ended it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from backend.channel import Channel, ChannelDamaged
from backend.channel_copy import ChannelCopy
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import JobSpec, WorkerState
from backend.launchers.cluster import requests
from backend.launchers.cluster.client import ActorGone, ClusterUnreachable
from backend.launchers.cluster.inside import keeper
from backend.launchers.cluster.requests import Node, ResourceRequest

POLL_S = 0.5
PLACED_S = 2.0
"""Seconds that one question about a keeper that is not placed yet waits."""
GONE_POLLS, GONE_S = 3, 5.0
"""Ray has to say so often, over so long, that a keeper is not there."""
AWAY_S = 90.0
"""Longer than a node of Ray lives without its head (60 s)."""
MOST_WRONG = 200
"""Characters that are passed on of why an answer cannot be used."""
ALONE_S = 1800.0
"""A keeper that nobody asks for so long ends its worker: longer than a supervisor that hands over may be away."""


class ClusterClient(Protocol):
    """The methods of `client.Client` that a follower uses."""

    def ask(self, operation: str, limit_s: float = 10.0, **arguments: Any) -> Any: ...

    def call(self, name: str, method: str, limit_s: float = 10.0, /, **arguments: Any) -> Any: ...


class Setup(NamedTuple):
    """The worker's setup: the checkout and its interpreter, the digest of its sources, the studio's home, and variables
    that it gets."""

    checkout: str
    python: str
    sources: str
    home: str
    variables: dict[str, str]


class AttemptFollower:
    """Follows one attempt. `state` is what was seen last; `cancel` and `stop` may be called from any thread."""

    def __init__(
        self,
        cluster: ClusterClient,
        name: str,
        channel: Channel,
        setup: Setup,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = WorkerState(alive=True, waiting="for the cluster")
        self._cluster, self._name, self._channel, self._setup, self._now = cluster, name, channel, setup, now
        self._copy = ChannelCopy(channel, self)
        self._begun = self._copy.begun
        self._created = self._begun
        self._place: str | None = None
        self._why = ""
        self._drop: list[str] = []
        self._moment = time.time_ns()
        """Number of the moment of which resume files are requested, above those of earlier supervisors."""
        self._last_moment: int | None = None
        """The moment after the worker's end."""
        self._cancel_force: bool | None = None
        self._well, self._gone_since, self._gone = now(), now(), 0
        self._stopping = threading.Event()

    def follow(self) -> None:
        """Poll until the worker has ended or `stop` was called."""
        while self.state.alive and not self._stopping.is_set():
            self.step()
            self._stopping.wait(POLL_S)

    def stop(self) -> None:
        self._stopping.set()

    def cancel(self, *, force: bool) -> None:
        self._cancel_force = force

    @property
    def placed(self) -> bool:
        """Return whether a node is known to have its keeper, or had it."""
        return self._begun or self._place is not None

    def read(self, name: str, offset: int, most: int) -> bytes:
        content: bytes = self._cluster.call(self._name, "read", 60.0, name=name, offset=offset, most=most)
        return content

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        self._cluster.call(self._name, "write", 60.0, name=name, offset=offset, content=content, mtime_ns=mtime_ns)

    def step(self) -> None:
        """Poll once. What goes wrong is tried again, for a while."""
        try:
            self._poll() if self._begun else self._begin()
            self._well, self._gone = self._now(), 0
        except ActorGone as error:
            self._is_gone(str(error))
        except ChannelDamaged as error:
            self._end(cause=str(error).rstrip("."), again=False)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wrong = f"{type(error).__name__}: {error}"[:MOST_WRONG]
            self._end(cause=f"The worker's machine does not answer as Whetstone does there ({wrong})", again=False)
        except (WhetstoneError, OSError) as error:
            self._is_away(error)

    def _begin(self) -> None:
        """Have a keeper placed, its node checked and given the files, and the worker begun."""
        if self._cancel_force is not None:
            self._end(cause="It was cancelled before a node took it")
            return

        # 1. Have a keeper placed.
        spec = self._channel.request()
        claim = self._channel.granted().claim or Claim()
        nodes = [Node(**node) for node in self._cluster.ask("nodes")]
        request = requests.make_request(spec, claim, nodes)
        if not self._created:
            self._create(request)
        try:
            where = self._cluster.call(self._name, "where", PLACED_S)
        except ClusterUnreachable:
            self.state = WorkerState(alive=True, waiting=requests.waiting_reason(request, nodes))
            return

        # 2. Check the node and send it what it lacks.
        self._place = f"{where['host']} ({where['address']})"
        self.state = WorkerState(alive=True, place=self._place, waiting="for its files to be there")
        if not self._cluster.call(self._name, "inspect", patterns=[], drop=[], resume_patterns=[])[
            "begun"
        ] and not self._send_files(spec):
            return

        # 3. Begin the worker.
        mark = f"{self._setup.home}:{self._name.split(':')[1]}"
        self._cluster.call(
            self._name,
            "begin",
            30.0,
            checkout=self._setup.checkout,
            python=self._setup.python,
            mark=mark,
            variables={**self._setup.variables, "WHETSTONE_NODE": self._place},
            folders=ChannelCopy.FOLDERS,
            whole=request.whole,
        )
        self._begun = True
        self.state = WorkerState(alive=True, place=self._place)

    def _create(self, request: ResourceRequest) -> None:
        key, job, attempt = self._name.split(":")
        arguments = {"key": key, "job": job, "attempt": int(attempt), "alone_s": ALONE_S}
        self._cluster.ask("start", name=self._name, arguments=arguments, request=request.options)
        self._created = True

    def _send_files(self, spec: JobSpec) -> bool:
        """Send the files that the node lacks. Return False if the node cannot run the job."""
        stamps = {path: stamp for path in sorted(spec.paths) if (stamp := keeper.stamp(Path(path)))}
        setup = {"checkout": self._setup.checkout, "python": self._setup.python, "sources": self._setup.sources}
        lacks = self._cluster.call(self._name, "lacks", 60.0, **setup, stamps=stamps)
        refusal = lacks["refusal"]

        # 1. Compare the files that are there.
        for path in lacks["other"]:
            described = {
                str(file): (keeper.sha256(file), file.stat().st_mtime_ns) for file in keeper.inside(Path(path))
            }
            if not self._cluster.call(self._name, "same", 3600.0, described=described):
                refusal = (
                    refusal
                    or f"has other files in {path} than the studio: remove them there, or give them another path"
                )
        if refusal:
            self._end(cause=f"The node {self._place} {refusal}", again=False)
            return False

        # 2. Send the missing ones, then the channel.
        for file in (file for path in lacks["missing"] for file in keeper.inside(Path(path))):
            self._copy.put(file, str(file))
        self._copy.send()
        return True

    def _poll(self) -> None:
        if self._cancel_force is not None:
            self._cluster.call(self._name, "ask", force=self._cancel_force)
            self._cancel_force = None
        if self._place is None:
            where = self._cluster.call(self._name, "where")
            self._place = f"{where['host']} ({where['address']})"

        # 1. Ask the keeper for the worker's state and its files.
        report = self._inspect(ChannelCopy.RUNNING, self._drop)
        if report["code"] is not None and self._last_moment is None:
            self._moment = self._last_moment = self._moment + 1
            report = self._inspect(ChannelCopy.RUNNING, [])

        # 2. Copy resume files, then events and logs; output and result at the end.
        self._carry(report["frozen"])
        ended = self._last_moment is not None and self._moment > self._last_moment
        if ended:
            report = self._inspect(ChannelCopy.ENDED, [])
        self._drop = self._copy.fetch(
            [(str(name), int(size), int(mtime_ns)) for name, size, mtime_ns in report["files"]], ended=ended
        )
        self.state = WorkerState(alive=not ended, code=report["code"] if ended else None, place=self._place)

    def _inspect(self, patterns: list[str], drop: list[str]) -> dict[str, Any]:
        answer: dict[str, Any] = self._cluster.call(
            self._name,
            "inspect",
            patterns=patterns,
            drop=drop,
            resume_patterns=ChannelCopy.RESUMED,
            frozen=self._moment,
        )
        return answer

    def _carry(self, frozen: dict[str, Any] | None) -> None:
        """Copy the resume files of that moment here, for a while. Once they are here, the next poll requests another
        moment."""
        if frozen is None or frozen["number"] != self._moment:
            return
        if self._copy.carry({name: (sha, size) for name, (sha, size) in frozen["files"].items()}, keeper.FROZEN):
            self._moment += 1

    def _is_gone(self, why: str) -> None:
        """Note that Ray says the keeper is gone. After a cluster's head was replaced, an unknown name is asked for
        again."""
        if not self._gone:
            self._gone_since = self._now()
        self._gone += 1
        if self._gone < GONE_POLLS or self._now() - self._gone_since < GONE_S:
            return
        if not self._begun and self._place is None:  # it never was on a node: have it made again
            self._created, self._gone = False, 0
        else:
            self._end(cause=f"The worker on {self._place or 'its node'} is gone, as the cluster says ({why})")

    def _is_away(self, error: Exception) -> None:
        late_s, why = self._now() - self._well, str(error).rstrip(".")
        if why != self._why:
            logging.warning("%s: %s", self._name, error)
            self._why = why
        if self._place is None and not self._begun:
            self._created = False
            self.state = WorkerState(alive=True, waiting=f"for the cluster to answer: {why}")
        elif late_s > AWAY_S:
            place = self._place or "its node"
            self._end(cause=f"Nothing was heard of the worker on {place} for {late_s:.0f} s ({why})")
        elif isinstance(error, ClusterUnreachable):
            self._rejoin()

    def _rejoin(self) -> None:
        """Ask for the nodes: a connection to a head that was replaced never answers again, so this ends it, and the
        next one is new."""
        try:
            self._cluster.ask("nodes")
        except WhetstoneError as error:
            logging.warning("%s: %s", self._name, error)

    def _end(self, cause: str, *, again: bool = True) -> None:
        self.state = WorkerState(alive=False, cause=cause, again=again, place=self._place)
