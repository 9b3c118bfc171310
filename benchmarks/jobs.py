"""Jobs by the thousand: how many a second, how long lists of many take, and when an event is on the screen.

    .venv/bin/python -m benchmarks.jobs [--no-ops N] [--jobs N] [--events N] [--watchers N] [--out FILE]

No-op jobs run without a process: a launcher whose job has ended as soon as it is started, so that the rate is what
claims, leases, channel, events and registration cost. Lists are those of the Jobs page; a watcher reads what the page
of a running job reads every two seconds; what drawing it takes is not counted.
PostgreSQL is a server of this benchmark's own (fsync off).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlmodel import insert

from backend import service
from backend.channel import Channel, JobChannel
from backend.cli.output import table
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import TERMINAL, Event, Handle, InstallSpec, JobState, WorkerState
from backend.hardware import probe
from backend.launchers.base import Launcher
from backend.service import Workspace
from backend.service.jobs import jobs, running_jobs, view_cache
from backend.settings import Settings
from backend.store import queue
from backend.store.tables import EventRow, JobRow
from backend.supervisor.supervisor import Supervisor
from tests.postgres import Postgres

READS = 40
LIVE_S = 2.0
"""How often a page looks (app/shell.py)."""
WATCHED = 10
"""Looks of each page."""
PHASES = ("optimize", "quality", "publish")
SPEC = InstallSpec(engine="compress", action="remove").model_dump_json()


class Instant(Launcher):
    """A worker that says one thing and has succeeded before `start` returns."""

    name = "instant"

    def start(self, job_id: str, channel: Channel) -> Handle:
        worker = JobChannel(Path(channel.address))
        worker.emit(Event(kind="note", message="done"))
        worker.result({"outcome": "succeeded", "document": {}})
        return Handle(launcher=self.name, place="no process", data={})

    def poll(self, handle: Handle) -> WorkerState:
        return WorkerState(alive=False, code=0)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        return

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        return


def no_op(number: int) -> JobRow:
    claim = Claim(background=number % 2 == 1, cores=1, gpus=()).text
    return JobRow(
        id=f"j-{number}", kind="install", state=JobState.QUEUED, title="no-op", owner="b", spec=SPEC, claim=claim
    )


def supervise(home: Path, url: str | None, host: str, ready: Any) -> None:
    """Until nothing is queued any more."""
    workspace = service.open_workspace(Settings(home=home, database_url=url))
    supervisor = Supervisor(workspace.settings, workspace.store, Instant(), host=host)
    supervisor.begin()
    ready.wait()
    while supervisor.tick():
        pass


def queued(folder: Path, url: str | None, count: int) -> tuple[Workspace, str]:
    """A home with so many no-op jobs, and the address of its database."""
    home = service.open_workspace(Settings(home=folder / "home-0", database_url=url))
    for number in range(count):
        home.store.run(lambda session, number=number: queue.submit(session, no_op(number)))
    return home, url or f"sqlite:///{folder}/home-0/whetstone.db"


def throughput(folder: Path, url: str | None, count: int, supervisors: int) -> float:
    """Jobs a second without a process each, from the first claim to the last end."""
    home, address = queued(folder, url, count)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(supervisors + 1)
    started = [
        context.Process(target=supervise, args=(folder / f"home-{number}", address, f"host-{number}", ready))
        for number in range(supervisors)
    ]
    for process in started:
        process.start()
    ready.wait()
    began = time.monotonic()
    for process in started:
        process.join()
    took = time.monotonic() - began
    assert jobs.count(home, states=[JobState.SUCCEEDED]) == count
    return count / took


def fill(workspace: Workspace, count: int, events: int) -> None:
    """So many jobs, all but the last few ended, and the last one with a thousandth of the events to itself."""
    at, each = datetime.now(UTC), max(1, events // count)
    states = [str(state) for state in TERMINAL]
    for first in range(0, count, 500):
        numbers = range(first, min(count, first + 500))
        rows = [
            JobRow(
                id=f"j-{n}",
                kind="optimize",
                state=states[n % len(states)],
                title=f"Optimize model {n}",
                owner=f"p{n % 20}",
                spec="{}",
                created_at=at - timedelta(seconds=count - n),
                started_at=at,
                finished_at=at,
            ).model_dump()
            for n in numbers
        ]
        messages = [_event(n, seq, at) for n in numbers for seq in range(1, each + 1)]
        with workspace.store.session() as session:
            session.execute(insert(JobRow), params=rows)
            session.execute(insert(EventRow), params=messages)


def _event(job: int, seq: int, at: datetime) -> dict[str, Any]:
    event = Event(kind="progress", at=at, phase=PHASES[seq % 3], progress=min(1.0, seq / 1000), message=f"step {seq}")
    document = event.model_dump_json(exclude_none=True)
    return {"job_id": f"j-{job}", "seq": seq, "kind": "progress", "at": at, "document": document}


def lists(workspace: Workspace, count: int) -> dict[str, float]:
    """Milliseconds, 95th percentile of READS, of what pages and commands list."""
    failed = [str(JobState.FAILED)]
    values: dict[str, Callable[[], object]] = {
        "jobs, first page": lambda: jobs.listing(workspace, limit=20),
        "jobs, last page": lambda: jobs.listing(workspace, limit=20, offset=count - 20),
        "jobs that failed": lambda: jobs.listing(workspace, states=failed, limit=20),
        "jobs of a person": lambda: jobs.listing(workspace, owner="p7", limit=20),
        "jobs by words": lambda: jobs.listing(workspace, words="model 77", limit=20),
        "how many jobs": lambda: jobs.count(workspace, states=failed),
        "what runs": lambda: running_jobs.list_running(workspace),
        "one job's story": lambda: jobs.timeline(workspace, f"j-{count - 1}"),
    }
    return {name: p95([timed(read) for _ in range(READS)]) * 1000 for name, read in values.items()}


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def p95(values: list[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def event_to_store(workspace: Workspace, folder: Path) -> float:
    """Seconds, 95th percentile, from a worker's word to its place in the store, with a round every 0.2 s."""
    supervisor = Supervisor(workspace.settings, workspace.store, _Speaking(), host="events")
    supervisor.begin()
    workspace.store.run(lambda session: queue.submit(session, no_op(10**9)))
    while not supervisor.launcher.spoken:  # type: ignore[attr-defined]
        supervisor.tick()
    worker: JobChannel = supervisor.launcher.spoken  # type: ignore[attr-defined]
    took = []
    for number in range(READS):
        began = time.perf_counter()
        worker.emit(Event(kind="note", message=f"word {number}"))
        while not any(event.message == f"word {number}" for event in jobs.timeline(workspace, f"j-{10**9}")):
            time.sleep(0.2)
            supervisor.tick()
        took.append(time.perf_counter() - began)
    return p95(took)


class _Speaking(Instant):
    """Its one worker goes on until the benchmark ends."""

    spoken: JobChannel | None = None

    def start(self, job_id: str, channel: Channel) -> Handle:
        self.spoken = JobChannel(Path(channel.address))
        return Handle(launcher=self.name, place="no process", data={})

    def poll(self, handle: Handle) -> WorkerState:
        return WorkerState(alive=True)


def watching_cost(workspace: Workspace, watchers: int) -> float:
    """Processor milliseconds, in LIVE_S, in which so many pages of one job read what they show. The first reading is
    not counted, and their looks are spread as pages that were opened at any time are."""

    def read_page() -> None:
        job = view_cache.read_snapshot(workspace, f"j-{10**9}").job
        view_cache.read_time_and_cost(workspace, job)
        view_cache.read_resource_use(workspace, job)

    read_page()
    began, used_s = time.monotonic(), 0.0
    for number in range(WATCHED * watchers):
        time.sleep(max(0.0, began + (number + 1) * LIVE_S / watchers - time.monotonic()))
        before = time.thread_time()
        read_page()
        used_s += time.thread_time() - before
    return used_s / WATCHED * 1000


def measured(
    folder: Path, address: Callable[[], str | None], request: argparse.Namespace, supervisors: int
) -> dict[str, Any]:
    (folder / "many").mkdir(parents=True)
    rate = throughput(folder / "no-ops", address(), request.no_ops, supervisors)
    many = service.open_workspace(Settings(home=folder / "many", database_url=address()))
    fill(many, request.jobs, request.events)
    waits = event_to_store(many, folder)
    one, several = watching_cost(many, 1), watching_cost(many, request.watchers)
    return {
        "jobs_per_s": rate,
        "supervisors": supervisors,
        "lists_p95_ms": lists(many, request.jobs),
        "event_to_store_p95_s": waits,
        "one_watcher_cpu_ms": one,
        "watchers_cpu_ms": several,
    }


def report(values: dict[str, dict[str, Any]], request: argparse.Namespace) -> str:
    rows: list[tuple[Any, ...]] = []
    for name, one in values.items():
        supervisors = f"{one['supervisors']} supervisor{'s' if one['supervisors'] > 1 else ''}"
        rows.append((name, f"no-op jobs a second without a process each, {supervisors}", one["jobs_per_s"], ""))
        rows += [(name, f"{what}, p95 ms", value, "under 300") for what, value in one["lists_p95_ms"].items()]
        waits = one["event_to_store_p95_s"]
        rows.append((name, "event to store, p95 s", waits, ""))
        rows.append(
            (
                name,
                f"event to screen at worst, s (a look every {LIVE_S:.0f} s)",
                waits + LIVE_S + view_cache.SNAPSHOT_MAX_AGE_S,
                "under 3",
            )
        )
        ratio = one["watchers_cpu_ms"] / one["one_watcher_cpu_ms"]
        rows.append((name, f"{request.watchers} watchers against one, processor time", ratio, "under 2"))
    facts, load = probe.probe(), os.getloadavg()[0]
    head = (
        f"# Jobs by the thousand\n\n{facts['cpu']}, {facts['cores']} cores, {datetime.now(UTC).date()}, load "
        f"{load:.1f}; "
        f"{request.no_ops} no-op jobs; {request.jobs} jobs with {request.events} events. "
        "`python -m benchmarks.jobs`.\n\n"
    )
    return f"{head}```\n{table(('database', 'what', 'measured', 'goal'), rows)}\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-ops", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--watchers", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    server = Postgres()
    try:
        with tempfile.TemporaryDirectory(prefix="whetstone-jobs-") as scratch:
            values = {
                "SQLite": measured(Path(scratch) / "sqlite", lambda: None, arguments, 1),
                "PostgreSQL": measured(Path(scratch) / "postgres", partial(server.new), arguments, 2),
            }
    finally:
        server.remove()
    reported = report(values, arguments)
    print(reported)
    if arguments.out:
        arguments.out.with_suffix(".json").write_text(json.dumps(values, indent=1))
        arguments.out.write_text(reported)


if __name__ == "__main__":
    main()
