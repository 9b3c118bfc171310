"""Real processes that put things of one name into one home at once: none fails, and each gets what it gave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backend.service.evaluations import imported_results, workloads
from backend.service.models import models
from backend.service.presets import presets
from tests.helpers.imported_files import CONCURRENT, RECORDED
from tests.helpers.task_files import TASK
from tests.homes import open_home
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process
PROCESSES, ROUNDS = 4, 1
CHILD = """
import json, sys, time
from pathlib import Path
from backend import service
from backend.service.evaluations import imported_results, tasks, workloads
from backend.service.models import models
from backend.service.plans import calibration
from backend.service.presets import preset_text, presets
from backend.service.tasks import task_files

folder, number, rounds, together = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
opened = service.open_workspace()
(folder / f"ready-{number}").touch()
while len(list(folder.glob("ready-*"))) < together:
    time.sleep(0.001)
for turn in range(rounds):
    mine = b'{"prompt": "of process %d in round %d"}\\n' % (number, turn)
    name = workloads.save(opened, "same.jsonl", mine)
    assert workloads.find_file(str(workloads.list_saved(opened)[name])).read_bytes() == mine, name
    text = b"calibration of process %d in round %d " % (number, turn) * 50
    assert calibration.save(opened, "same.txt", text).read_bytes() == text
    workloads.save(opened, "shared.jsonl", b'{"prompt": "the same of all"}\\n')
    models.remember(opened, str(folder / "model"))
    imported_results.add_files(opened, [Path(sys.argv[5])])
    presets.put(opened, preset_text.read_file(folder / "presets.yaml"), replace=True)
    tasks.keep_copies(opened, [task_files.read(folder / "task.yaml")])
"""
PRESETS = "presets:\n- {id: a/b, model: starter, goal: balanced, recipe: {name: x, steps: []}}\n"


def test_uploads_and_imports_of_one_name_at_once(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    tiny_llama(tmp_path / "model")
    (tmp_path / "presets.yaml").write_text(PRESETS)
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "sums.jsonl").write_text(json.dumps({"q": "1 + 1 =", "a": " 2"}) + "\n")
    environment = {"WHETSTONE_HOME": str(home.settings.home), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHILD,
                str(tmp_path),
                str(number),
                str(ROUNDS),
                str(PROCESSES),
                str(RECORDED / CONCURRENT),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    messages = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, "\n".join(messages)
    saved = workloads.list_saved(home)
    assert len(saved) == PROCESSES * ROUNDS + 1
    assert [path.name for path in home.settings.home.rglob(".*")] == []
    assert len(models.list_remembered(home)) == 1 and len(imported_results.listing(home)) == 1
    assert presets.listing(home)[0].origin == "imported"
