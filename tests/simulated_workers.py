"""Supervisors without processes: workers that a test moves by hand, and crashes between any two statements."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import event

from backend.channel import Channel, JobChannel
from backend.domain.jobs.claims import Capacity
from backend.domain.jobs.jobs import Event, Handle, WorkerState
from backend.domain.machine.device import GIB
from backend.launchers.base import Launcher
from backend.settings import Settings
from backend.store.database import open_store
from backend.supervisor.supervisor import Supervisor
from tests.small_artifacts import publish

CAPACITY = Capacity(cores=2, memory_bytes=8 * GIB, gpus=2)


class Crash(BaseException):
    """As kill -9 of the supervisor at that statement."""


@dataclass
class Worker:
    """A worker's process; it goes on when its supervisor does not."""

    job: str
    attempt: int
    home: str
    channel: JobChannel
    alive: bool = True
    asked: bool = False
    said: int = 0

    def say(self) -> None:
        self.said += 1
        self.channel.emit(Event(kind="note", message=f"attempt {self.attempt}, word {self.said}"))

    def succeed(self) -> None:
        """Publish an artifact, as an optimize job does, and end."""
        manifest = publish(self.channel, f"{self.job} {self.attempt} {self.said}")
        self._end({"outcome": "succeeded", "document": {"artifact": manifest.id, "attempt": self.attempt}})

    def fail(self) -> None:
        """By an error of its own."""
        self._end({"outcome": "failed", "error": "The recipe is wrong."})

    def fill(self) -> None:
        """The disk, and end."""
        self._end({"outcome": "failed", "error": "The disk filled up.", "ending": "disk"})

    def stop(self) -> None:
        """As it ends where it is asked to."""
        self._end({"outcome": "cancelled", "error": "The job was cancelled."})

    def _end(self, result: dict[str, Any]) -> None:
        self.channel.result(result)
        self.alive = False


@dataclass
class World:
    """All workers that were ever started."""

    workers: list[Worker] = field(default_factory=list)

    elsewhere: bool = False
    """What runs is run by another machine, and goes on without its supervisor."""
    others: tuple[int, Callable[[], None]] | None = None

    def between(self) -> None:
        """Whatever is to happen after so many calls of a launcher happens."""
        if self.others is not None:
            left, act = self.others
            self.others = (left - 1, act) if left else None
            if not left:
                act()

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]


class SimulatedLauncher(Launcher):
    """Starts, sees and ends what is of its home, as the local launcher does by the mark of its processes."""

    name = "simulated"

    def __init__(self, world: World, home: str) -> None:
        self._world, self._home = world, home

    def start(self, job_id: str, channel: Channel) -> Handle:
        folder = Path(channel.address)
        self._world.workers.append(Worker(job_id, int(folder.name), self._home, JobChannel(folder)))
        number = len(self._world.workers) - 1
        self._world.between()
        return Handle(launcher=self.name, place="a test", data={"number": number})

    def poll(self, handle: Handle) -> WorkerState:
        alive = self._world.workers[handle.data["number"]].alive
        self._world.between()
        return WorkerState(alive=alive)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        worker = self._world.workers[handle.data["number"]]
        worker.asked, worker.alive = True, worker.alive and not force

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        for worker in self._world.workers:
            if (worker.job, worker.home) == (job_id, self._home):
                worker.alive = False
        self._world.between()

    def sweep_others(self, remaining: Collection[str]) -> None:
        for worker in self._world.workers:
            worker.alive = worker.alive and (worker.home != self._home or worker.job in remaining)

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        return not self._world.elsewhere


class Home:
    """A supervisor that can crash, and the next one of its home."""

    def __init__(self, world: World, folder: Path, url: str, host: str, **settings: Any) -> None:
        self.settings = Settings(home=folder, database_url=url, **settings)
        self.host, self.time, self._world = host, 0.0, world
        self._left: int | None = None
        self.supervisor = self._started()

    def _started(self, *, background_uploads: bool = False) -> Supervisor:
        self.store = open_store(self.settings)
        for name in ("before_cursor_execute", "commit"):
            event.listen(self.store.engine, name, self._step)
        launcher = SimulatedLauncher(self._world, str(self.settings.home))
        started = Supervisor(
            self.settings,
            self.store,
            launcher,
            host=self.host,
            capacity=CAPACITY,
            monotonic=lambda: self.time,
            background_uploads=background_uploads,
        )
        started.begin()
        return started

    def _step(self, *_: object) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Crash

    def tick_with(self, after: int, act: Callable[[], None]) -> None:
        """A round in which others do something between two of its transactions: after so many calls of the launcher."""
        self._world.others = (after, act)
        self.tick()
        self._world.others = None

    def tick(self, crash_after: int | None = None) -> None:
        """A round, or as much of it as so many statements and commits, after which the next supervisor of the home
        starts."""
        self._left = crash_after
        try:
            self.supervisor.tick()
        except Crash:
            self.restart()
        self._left = None

    def restart(self, *, background_uploads: bool = False) -> None:
        """The next supervisor of this home, after one that ended."""
        self._left = None
        self.store.engine.dispose()
        self.supervisor = self._started(background_uploads=background_uploads)
