"""A worker of the fault campaign: the real top level (`backend.worker`), with work of milliseconds in place of a
kind's.

    python -m tests.faults.worker CHANNEL

Its steps are a chain of hashes, kept after each to go on from, so that what it publishes says whether a step was left
out, done twice or done for another job.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from backend import channel as channels
from backend import files
from backend.channel import JobChannel
from backend.domain.jobs.jobs import Event
from backend.worker import __main__ as worker
from backend.worker.resources import PeakMemory
from tests.small_artifacts import publish

PULSE_S = 0.2
DONE = "done.json"


def read_steps(spec: str) -> tuple[int, float]:
    """How many steps, and seconds of each: those and the milliseconds stand in the job's seed, so that the
    specification is one that a cluster's launcher reads too."""
    steps, milliseconds = divmod(int(json.loads(spec)["seed"]), 1000)
    return steps, milliseconds / 1000


def chain(job: str, steps: int) -> str:
    """What the job's artifact must hold."""
    result = job
    for number in range(steps):
        result = hashlib.sha256(f"{result} {number}".encode()).hexdigest()
    return result


def work(channel: JobChannel, _memory: PeakMemory) -> dict[str, Any]:
    attempt, remaining = Path(sys.argv[1]).name, channel.resume()
    steps, step_s = read_steps(json.dumps(channel.spec()))
    remaining.mkdir(parents=True, exist_ok=True)
    state = (
        json.loads((remaining / DONE).read_text())
        if (remaining / DONE).exists()
        else {"number": 0, "hash": channel.job}
    )
    while state["number"] < steps:
        time.sleep(step_s)
        number = state["number"]
        state = {"number": number + 1, "hash": hashlib.sha256(f"{state['hash']} {number}".encode()).hexdigest()}
        files.write(remaining / DONE, json.dumps(state), flush=False)
        message = f"step {number} of attempt {attempt}"
        channel.emit(Event(kind="note", message=message, progress=state["number"] / steps), urgent=number % 2 == 0)
    return {"artifact": publish(channel, state["hash"]).id}


if __name__ == "__main__":
    channels.PULSE_S = PULSE_S
    worker._run = work
    ended = worker.main(sys.argv[1])
    sys.stdout.flush()
    os._exit(ended)
