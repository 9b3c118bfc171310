"""A home of one's own for a test: a real store, real supervisor processes, and the means to see what runs in it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

from backend import processes, service
from backend.domain.jobs.jobs import LIVE, JobState
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.recipe.recipe import Recipe
from backend.hardware import processor_speed
from backend.launchers.local import MARK
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.plans import cases, optimize
from backend.settings import Settings
from tests import live_processes

DEADLINE_S = 600.0
"""Longer than a start of vLLM takes beside other tests; that of a test that hangs is pytest's own."""
DATABASE = "whetstone.db"
PROBED = processor_speed.Speed(60e9, 40e9, 0.9e12)
"""Of a processor as these tests run on."""
KERNELS = "WHETSTONE_TEST_KERNELS"
"""Environment variable of the folder in which this run's servers keep what they compile: a thing is compiled once a
run."""


def open_home(folder: Path, *, probed: bool = True, **settings: Any) -> Workspace:
    """A workspace in `folder`, made as a copy of an empty, migrated home where nothing is there. `settings`: as of
    Settings.

    `probed`: its processor was measured before, which else takes a home's first estimate ten seconds of all cores.
    """
    chosen = Settings(home=folder.resolve(), **settings)
    if not (chosen.home / DATABASE).exists():
        chosen.home.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_migrated() / DATABASE, chosen.home / DATABASE)
        _share_kernels(chosen)
        if probed:
            probe_once(chosen)
    return service.open_workspace(chosen)


def _share_kernels(chosen: Settings) -> None:
    if shared := os.environ.get(KERNELS):
        chosen.cache.mkdir(exist_ok=True)
        (chosen.cache / "vllm").symlink_to(shared, target_is_directory=True)
        for name in ("preflight", "scoring"):  # a model of the same files is checked, and its text scored, once a run
            (Path(shared) / name).mkdir(exist_ok=True)
            (chosen.cache / name).symlink_to(Path(shared) / name, target_is_directory=True)


def probe_once(chosen: Settings, speed: processor_speed.Speed = PROBED) -> None:
    """Leave behind what an earlier measurement of this machine does."""
    row = speed._asdict() | {"at": "2026-11-21T04:00:00+00:00", "busy": False}
    chosen.cache.mkdir(parents=True, exist_ok=True)
    document = {"processor": processor_speed._key(), "attempts": [row] * processor_speed.ATTEMPTS}
    (chosen.cache / processor_speed.FILE).write_text(json.dumps(document))


@cache
def _migrated() -> Path:
    """An empty home, migrated once in this process: a migration takes longer than many tests do."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-migrated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # the last connection closed, all is in the one file
    service.open_workspace(Settings(home=folder)).store.engine.dispose()
    return folder


def prepare(
    workspace: Workspace, source: str, recipe: Recipe, target: str = "local", goal: TargetGoal | None = None
) -> optimize.PreparedOptimize:
    """What `optimize.submit` takes for that model and recipe."""
    return optimize.prepare(
        workspace, cases.resolve(workspace, models.resolve_facts(workspace, source), recipe, target, goal)
    )


def eventually(what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Poll until the condition holds; fail naming it when the deadline passes."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"still waiting for: {what}"
        time.sleep(0.05)


@contextmanager
def once(condition: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Beside what is done inside: `act`, as soon as the condition holds."""

    def wait() -> None:
        eventually("the moment to act", condition)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def until_phase(workspace: Workspace, job_id: str, phase: str) -> JobView:
    """The job once its latest attempt has begun that phase; one that has ended fails. A phase that was over between two
    looks counts as well."""

    def reached() -> bool:
        current = jobs.show(workspace, job_id)
        assert not current.ended, f"{job_id} ended before {phase}: {current.state} {current.error}"
        if current.state not in LIVE or current.started_at is None:
            return False
        return any(
            event.kind == "phase" and event.phase == phase and event.at >= current.started_at
            for event in jobs.timeline(workspace, job_id)
        )

    eventually(f"phase {phase} of {job_id}", reached)
    return jobs.show(workspace, job_id)


def until_ended(workspace: Workspace, job_id: str) -> JobView:
    eventually(f"the end of {job_id}", lambda: jobs.show(workspace, job_id).ended)
    return jobs.show(workspace, job_id)


def until_state(workspace: Workspace, job_id: str, state: JobState) -> JobView:
    eventually(f"{job_id} {state}", lambda: jobs.show(workspace, job_id).state is state)
    return jobs.show(workspace, job_id)


def processes_of(workspace: Workspace) -> list[psutil.Process]:
    """Every live process that carries this home's mark: workers and all that they started."""
    mark, result = f"{workspace.settings.home}:", []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(MARK, "").startswith(mark):
                result.append(process)
    return result


def worker_pid(workspace: Workspace) -> int:
    """The worker's own pid: the marked process that leads a session."""
    pids = [process.pid for process in processes_of(workspace)]
    workers = [pid for pid in pids if live_processes.answer(partial(os.getsid, pid), 0) == pid]
    assert workers, "no worker runs: it has ended already"
    return workers[0]


def kill_supervisor(workspace: Workspace) -> None:
    """kill -9, and wait until that process is gone: somebody who waits for a job may have started the next one
    already."""
    killed = supervisors_of(workspace)
    assert killed
    live_processes.kill(killed)
    assert processes.wait_for_end(killed, 120) == []


def supervisors_of(workspace: Workspace) -> list[psutil.Process]:
    """Every supervisor process of that home; not what one is just starting, which has its command line until it has its
    own."""
    results: list[tuple[psutil.Process, int]] = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            home = process.environ().get("WHETSTONE_HOME")
            if home == str(workspace.settings.home) and "backend.supervisor" in process.cmdline():
                results.append((process, process.ppid()))
    pids = {process.pid for process, _ in results}
    return [process for process, parent in results if parent not in pids]
