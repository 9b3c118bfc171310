"""Where a fault of the campaign happens: a database, one home or two, their supervisors and workers as real
processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import psutil
from sqlmodel import select

from backend import processes
from backend.channel import Channel
from backend.domain.errors import NotNow
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import LIVE, TERMINAL, Handle, JobState, OptimizeSpec
from backend.domain.rules.plan import Plan
from backend.launchers.local import MARK
from backend.settings import Settings
from backend.store import queue
from backend.store.database import Store, open_store
from backend.store.tables import JobRow
from tests import buckets, live_processes
from tests.faults.nodes import Nodes
from tests.faults.supervise import ALONE_S, Start, interpreter, supervise
from tests.small_artifacts import CARD, RECIPE

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.faults.supervise"])
BUCKET, WORKER = "faults", "tests.faults.worker"
POLL_S = 0.05
DISK_MB = 8
DEADLINE_S = 60.0
"""Of anything that must happen: a shared machine may be slow, and none of the shortened clocks is a tenth of it."""
MOST_RESUMES = 4
SLOWER = 3
"""So many times, on a cluster: joining it and starting a node's processes take longer than all of a job here."""


class Stuck(AssertionError):
    """Something that had to happen did not."""


def _specification(steps: int, step_s: float) -> str:
    seed = 1000 * steps + round(1000 * step_s)
    return OptimizeSpec(model=CARD, recipe=RECIPE, plan=Plan(hardware="cpu", steps=()), seed=seed).model_dump_json()


@dataclass
class Lane:
    """One place after another in which sites are opened. `database` makes a new address in a folder; `restart` stops
    the server of this lane for so many seconds, where it has one."""

    name: str
    database: Callable[[Path], str]
    restart: Callable[[float], None] | None = None
    bucket: str = ""
    """The address of a proxy before the bucket server (`tests/fakes/faulty.py`)."""
    drop: Callable[[str], None] = field(default=lambda _: None)
    cluster: Nodes | None = None


class Site:
    """`random` decides everything that a seed decides. What does not follow from the fault is not told to the site."""

    def __init__(
        self,
        folder: Path,
        lane: Lane,
        seed: int,
        *,
        homes: int = 1,
        hosts: int = 1,
        disk: bool = False,
        s3: bool = False,
        ray: bool = False,
    ) -> None:
        """`disk`: the home, or all of it, is on a small disk of its own, `self.disk`. `s3`: artifacts go to the lane's
        bucket. `ray`: jobs run on the lane's cluster."""
        self.folder, self.lane, self.random = folder, lane, Random(seed)
        self.cluster = lane.cluster if ray else None
        self.slower = SLOWER if ray else 1
        self.disk = self.random.choice((folder, folder / "home-0")) if disk else None
        for each in filter(None, (folder, self.disk)):
            each.mkdir(exist_ok=True)
        if self.disk is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(self.disk)], check=True)
        self.homes = {f"home-{number}": f"host-{number % hosts}" for number in range(homes)}
        self.database = lane.database(folder)
        self.artifacts = f"s3://{BUCKET}/{folder.name}" if s3 else None
        self.driver = Settings(home=folder / "driver", database_url=self.database, artifact_store=self.artifacts)
        self.store: Store = open_store(self.driver)
        common = {
            "artifacts": self.artifacts,
            "bucket_url": lane.bucket,
            "ray": self.cluster and self.cluster.address,
        }
        self.starts = {
            name: Start(str(folder / name), self.database, host, **common) for name, host in self.homes.items()
        }
        if s3:
            self.break_bucket()
        self.processes: dict[str, BaseProcess] = {}
        """The supervisor of each home that was started last."""
        self.started: list[BaseProcess] = []
        """All of them: where two are started for one home, either may be the one that serves it."""
        self.submitted: list[str] = []
        self.cancelled: set[str] = set()
        for name in self.homes:
            interpreter(folder / name)

    def home(self, name: str = "home-0") -> Path:
        return self.folder / name

    def start(self, name: str = "home-0", **changes: Any) -> BaseProcess:
        """A supervisor of that home; `changes` to its Start are for this process alone."""
        process = CONTEXT.Process(target=supervise, args=(replace(self.starts[name], **changes),), daemon=True)
        process.start()
        self.processes[name] = process
        self.started.append(process)
        return process

    def break_bucket(self, *faults: dict[str, Any]) -> None:
        """What happens to requests from now on, in place of what was to happen (`tests/fakes/faulty.py`)."""
        buckets.faults(self.lane.bucket, *faults)

    def signal(self, number: signal.Signals, name: str = "home-0") -> None:
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
        if number is signal.SIGKILL:
            process.join(DEADLINE_S)

    def wait(self, low: float = 0.0, high: float = 1.0) -> None:
        """For a moment between these seconds, which the seed chooses."""
        time.sleep(self.random.uniform(low, high))

    def submit(self, jobs: int = 2, *, steps: int = 6, **columns: Any) -> list[str]:
        """Jobs in both places of a host; one in four of more than two measures, and has the host to itself."""
        names = [f"j-{len(self.submitted) + number}" for number in range(jobs)]
        for number, name in enumerate(names):
            spec = _specification(steps, self.random.uniform(0.01, 0.08) * self.slower)
            alone = number > 1 and self.random.random() < 0.25
            neighbour = Claim(background=True, cores=0, gpus=()) if number % 2 else Claim()
            claim = Claim(whole=True) if alone else neighbour
            if self.cluster is not None:
                claim = Claim(movable=True, whole=alone, cores=1)
            row = JobRow(
                id=name,
                kind="optimize",
                state=JobState.QUEUED,
                title=name,
                owner="campaign",
                spec=spec,
                claim=claim.text,
                **columns,
            )
            self.store.run(lambda session, row=row: queue.submit(session, row))
        self.submitted += names
        return names

    def rows(self) -> list[JobRow]:
        with self.store.read() as session:
            return list(session.exec(select(JobRow)))

    def row(self, job: str) -> JobRow:
        with self.store.read() as session:
            return queue.get(session, job)

    def until(self, what: str, condition: Callable[[], bool], deadline_s: float | None = None) -> None:
        """Raises Stuck."""
        deadline_s = deadline_s or DEADLINE_S * self.slower
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                states = [(row.id, row.state, row.attempt, row.error) for row in self.rows()]
                raise Stuck(f"not within {deadline_s:.0f} s: {what}; {states}")
            time.sleep(POLL_S)

    def until_running(self, job: str = "j-0") -> None:
        """Until it runs, or is over already."""
        states = {JobState.QUEUED, JobState.STARTING}

        def runs() -> bool:
            row = self.row(job)
            there = self.cluster is None or (self.node(job) is not None and self.worker(job) is not None)
            return row.state not in states and (there or row.state not in LIVE)

        self.until(f"{job} runs", runs)

    def worker(self, job: str = "j-0") -> psutil.Process | None:
        """The process that was recorded for the job's last attempt, while it is there."""
        row = self.row(job)
        if row.handle is None or row.state not in LIVE:
            return None
        if self.cluster is not None:
            return self._on_a_node(row)
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(Handle.model_validate_json(row.handle).data["pid"])
        return None

    def _on_a_node(self, row: JobRow) -> psutil.Process | None:
        for process in processes.find_marked(MARK, f"{row.home}:{row.id}"):
            with suppress(*processes.PROCESS_ENDED):
                command = process.cmdline()
                if WORKER in command and command[-1].endswith(f"/{row.id}/{row.attempt}"):
                    return process
        return None

    def node(self, job: str = "j-0") -> int | None:
        """The number of the node that the job is on, while it is."""
        row = self.row(job)
        if self.cluster is None or row.handle is None or row.state not in LIVE:
            return None
        return self.cluster.number(Handle.model_validate_json(row.handle).place)

    def channel(self, job: str, attempt: int | None = None, home: str = "home-0") -> Path:
        return Path(Channel(self.home(home) / "jobs" / job, attempt or self.row(job).attempt).address)

    def cancel(self, job: str) -> None:
        with suppress(NotNow):
            self.store.run(lambda session: queue.request_cancel(session, job, "campaign"))
            self.cancelled.add(job)

    def resume(self, job: str) -> None:
        with suppress(NotNow):
            self.store.run(lambda session: queue.requeue(session, job))

    def tend(self) -> None:
        """Start again, with nothing in its way, whichever supervisor is gone, as `whetstone up` and every waiting
        command do."""
        for name, process in list(self.processes.items()):
            if not process.is_alive():
                self.start(name)
        if self.cluster is not None:
            self.cluster.tend()

    def settle(self) -> dict[str, str]:
        """Wait until every job has ended by itself; the states then. Raises Stuck."""

        def ended() -> bool:
            self.tend()
            return all(row.state in TERMINAL for row in self.rows())

        self.until("every job ends", ended)
        return {row.id: row.state for row in self.rows()}

    def finish(self) -> None:
        """Resume, as a person would, what did not succeed, until it does; what was cancelled stays so. Raises Stuck."""
        for resumed in range(MOST_RESUMES + 1):
            left = [row.id for row in self.rows() if row.state != JobState.SUCCEEDED and row.id not in self.cancelled]
            if not left:
                return
            if resumed == MOST_RESUMES:
                break
            for job in left:
                self.resume(job)
            self.settle()
        raise Stuck(f"resumed {MOST_RESUMES} times: {[(row.id, row.state, row.error) for row in self.rows()]}")

    def stop(self) -> None:
        """Every supervisor in order."""
        for process in (each for each in self.started if each.is_alive()):
            for number in (signal.SIGCONT, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    os.kill(process.pid or 0, number)
        for process in self.started:
            process.join(DEADLINE_S)
            if process.is_alive():
                process.kill()
                raise Stuck(f"supervisor {process.pid} does not stop on SIGTERM")
        with suppress(Stuck):  # what is left then is for the checker
            self.until("nobody is left on the nodes", lambda: not self.left_on_nodes(), ALONE_S + DEADLINE_S)

    def here(self) -> list[psutil.Process]:
        """Whatever runs of its jobs on the machines of its supervisors."""
        return self.left_over() if self.cluster is None else []

    def left_on_nodes(self) -> list[str]:
        """What the cluster has of any job: keepers, and files on the nodes. One that nobody asks for ends by itself."""
        if self.cluster is None:
            return []
        keepers = [f"keeper {name}" for name in self.cluster.keepers()]
        return keepers + [f"{path} lies on a node" for path in self.cluster.attempts()]

    def left_over(self) -> list[psutil.Process]:
        """Whatever still runs of any of its jobs."""
        return [process for name in self.homes for process, _ in processes.list_marks(MARK, f"{self.home(name)}:")]

    def close(self) -> None:
        """Whatever happened: no process stays, and the database goes."""
        for supervisor in self.started:
            if supervisor.is_alive():
                supervisor.kill()
                supervisor.join(DEADLINE_S)
        live_processes.kill(self.left_over())
        self.store.engine.dispose()
        self.lane.drop(self.database)
        if self.disk is not None:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)
