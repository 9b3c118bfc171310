"""What a worker says of the folders that its job reads, and of a disk that has no room for its last word."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.channel import Channel
from backend.domain.jobs.jobs import RESULT_UNWRITTEN, Event
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.supervisor.finish import exit_reason
from tests.studio import optimize_spec
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
FULL = """
import sys
from pathlib import Path
from backend.channel import Channel
from backend.domain.jobs.jobs import InstallSpec
from backend.supervisor.finish import exit_reason
from backend.worker.__main__ import main

folder = Path(sys.argv[1]) / "j-1"
Channel(folder).open(InstallSpec(engine="none").model_dump_json())
with (folder.parent / "filler").open("wb", buffering=0) as sink:
    try:
        while True:
            sink.write(b"x" * 512)
    except OSError:
        pass
code = main(str(folder / "1"))
sys.stderr.write(exit_reason(code, folder)[1])
"""


def worked(home: Workspace, model: Path, change: object) -> tuple[str, list[Event]]:
    """The error of a job whose model was changed while it waited, and its events."""
    job = jobs.submit(home, optimize_spec(home, str(model)), "Optimize")
    change(model)  # type: ignore[operator]
    opened = Channel(home.settings.jobs / job.id)
    opened.open(json.dumps(jobs.specification(home, job.id)))
    subprocess.run(
        [sys.executable, "-m", "backend.worker", opened.address],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=120,
    )
    result = opened.result()
    assert result is not None
    return str(result.error), [event for _, events in opened.segments(0) for event in events]


def test_a_model_folder_that_was_deleted_is_named(home: Workspace, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    error, _ = worked(home, model, shutil.rmtree)
    assert str(model) in error and "put it back, then resume" in error


def test_weights_that_changed_while_the_job_waited_are_a_warning(home: Workspace, tmp_path: Path) -> None:
    def rewrite(model: Path) -> None:
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes())

    model = tiny_llama(tmp_path / "model")
    _, events = worked(home, model, rewrite)
    (warning,) = [event.message for event in events if event.kind == "warning" and "submitted" in str(event.message)]
    assert warning == f"The files in {model} changed after this job was submitted: it works on them as they are now."


def test_a_disk_without_room_for_the_result_is_named(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=256k none "$0" && exec "$@"'
    isolated = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)]
    command = [*isolated, sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.endswith("Free some space, then resume the job.") and str(tmp_path) in done.stderr, done
    assert "disk filled up" in exit_reason(RESULT_UNWRITTEN, tmp_path)[1]
