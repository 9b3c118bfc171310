"""A disk that fills up in the middle of a job: the attempt ends with that sentence, the store stays whole, and once
there is space again the job is tried again by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign

LEFT_BYTES = 6_000_000
"""Less than the 13 MB of INT8 weights, enough for the store and the log."""
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import shutil
import sys
from pathlib import Path
from backend.domain.jobs.jobs import JobState
from backend.domain.recipe import recipe
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.plans import optimize
from tests import homes
from tests.held_workers import hold_once, release
from tests.homes import eventually, open_home, processes_of, until_ended

disk = Path(sys.argv[1])
home = open_home(disk / "home")
chosen = recipe.read({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})
job = optimize.submit(home, homes.prepare(home, "starter", chosen))
supervisors.start(home)
worker = hold_once(home, job.id, lambda: jobs.show(home, job.id).state is JobState.RUNNING)
filler = disk / "filler"
with filler.open("wb") as sink:
    sink.write(b"x" * (shutil.disk_usage(disk).free - int(sys.argv[2])))
release(worker)
eventually("another try", lambda: jobs.show(home, job.id).attempt == 2)
found = jobs.show(home, job.id)
print(found.state, found.ending, "|", found.message)
print("artifacts", len(artifacts.listing(home)), "work", (home.settings.jobs / job.id / "1" / "work").exists())
filler.unlink()
print(until_ended(home, job.id).state)
artifacts.verify(home, artifacts.listing(home)[0].id)
jobs.cancel_all_and_stop(home)
print("processes", len(processes_of(home)))
"""


def test_a_full_disk_ends_the_attempt_in_a_sentence_and_the_job_is_tried_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=120m none "$0" && exec "$@"'
    isolated = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(disk)]
    command = [sys.executable, "-c", SCRIPT, str(disk), str(LEFT_BYTES)]
    done = subprocess.run([*isolated, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.splitlines()
    assert lines and lines[0].startswith("queued disk | "), (done.stdout, done.stderr)
    assert "disk filled up" in lines[0] and "tried again in 30 s" in lines[0]
    assert lines[1:] == ["artifacts 0 work False", "succeeded", "processes 0"], (done.stdout, done.stderr)
