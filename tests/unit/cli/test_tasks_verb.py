"""`whetstone tasks`, and `whetstone evaluate` with a task by name that is not here yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.cli.main import main
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.tasks import named_tasks
from tests import data_sets
from tests.fakes.running import running

pytestmark = pytest.mark.process


@pytest.fixture
def without_hub(home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with the `quality` environment, as far as can be seen without starting it, and no hub."""
    folder = tmp_path / "engines" / "quality"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "INSTALLED.json").write_text('{"name": "quality", "version": "1"}')
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def whetstone(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as until_then, pytest.raises(SystemExit) as ended:
        until_then.setattr("sys.argv", ["whetstone", *words])
        main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.mark.usefixtures("without_hub")
def test_tasks_are_listed_got_from_a_folder_and_listed_as_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = whetstone(capsys, "tasks", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and set(rows) == set(named_tasks.names()) and rows["hellaswag"]["items"] == 10042
    code, _, error = whetstone(capsys, "tasks", "get", "piqa")
    assert code == 2 and "Cannot reach http://127.0.0.1:9" in error and "tasks get piqa FOLDER" in error
    data_sets.store(tmp_path, "baber/piqa")
    code, out, _ = whetstone(capsys, "tasks", "get", "piqa", str(tmp_path / "datasets" / "baber" / "piqa"))
    assert code == 0 and "Next: whetstone evaluate starter --tasks piqa" in out
    (line,) = [line for line in whetstone(capsys, "tasks", "list")[1].splitlines() if line.startswith("piqa")]
    assert line.split()[1:4] == ["1838", "0.500", "not"] and " yes " in line


@pytest.mark.usefixtures("without_hub")
def test_evaluate_gets_a_task_before_anything_is_submitted(
    home: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant is an address alone, which is refused after the data is here."""
    evaluate = ("evaluate", "http://127.0.0.1:9", "--tasks", "piqa", "--tasks", "next-line")
    code, _, error = whetstone(capsys, *evaluate)
    assert code == 2 and "Cannot reach http://127.0.0.1:9: check the network" in error
    data_sets.store(tmp_path, "baber/piqa")
    with running("hub.py", "--root", tmp_path) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        code, out, error = whetstone(capsys, *evaluate, "--json")
    assert code == 2 and out == "" and f"of baber/piqa from {url}" in error and "need a model's tokenizer" in error
    assert named_tasks.missing(home, ["piqa"]) == [] and jobs.listing(home) == []
