"""Tasks by name: fetched once from a hub on loopback or a folder, whole or not at all, and read like a task of one's
own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.catalog.bundled import named_tasks as table
from backend.catalog.text import task_rows
from backend.domain.errors import (
    AccessRefused,
    DownloadFailed,
    NotFound,
    RequestError,
    SourceUnreachable,
    UnknownModel,
    WhetstoneError,
)
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.evaluation.tasks import task_rules
from backend.service import Workspace
from backend.service.evaluations import tasks
from backend.service.tasks import named_tasks
from backend.service.tasks.task_files import InvalidTask
from tests import data_sets
from tests.fakes.running import running
from tests.homes import open_home
from tests.hubs import FakeHub

pytestmark = pytest.mark.process

PIQA = "datasets/baber/piqa"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    for data_set in data_sets.SCHEMAS:
        data_sets.store(root, data_set)
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(running_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    data_sets.store(running_hub.root, "baber/piqa")
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(named_tasks, "PATIENCE_S", (0.01, 0.01))
    running_hub.fault()
    running_hub.forget()
    return running_hub


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path / "home")


def left_over(workspace: Workspace) -> list[str]:
    """Files of tasks in the home, those that are being written or fetched included."""
    folders = (workspace.settings.home / "tasks", workspace.settings.cache / "tasks")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return [path.name for path in files]


@pytest.mark.parametrize("name", named_tasks.names())
def test_a_task_by_name_is_fetched_once_and_then_read_without_the_hub(
    hub: FakeHub, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task = table.load()[name]
    assert named_tasks.missing(workspace, [name, "next-line"]) == [name]
    lines: list[str] = []
    named_tasks.get_missing(workspace, [name, "next-line"], lines.append)
    assert task.data_set in lines[0] and hub.url in lines[0]
    assert lines[1:] == [f"{name}: these files have 24 items, and the data set has {task.items:,}."]
    assert {entry["path"].split("/resolve/")[0] for entry in hub.served("/datasets")} == {f"/datasets/{task.data_set}"}
    # Nothing is asked from now on.
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    hub.forget()
    named_tasks.get(workspace, name)
    (read,) = tasks.find(name, workspace.settings.home)
    assert (read.name, read.samples) == (name, data_sets.COUNT) and hub.log() == []
    described = {key: read.config["metadata"][key] for key in ("floor", "licence", "source")}
    assert described == {"floor": task.floor, "licence": task.licence, "source": task.source}
    assert read.config == {**task.config(), "dataset_kwargs": read.config["dataset_kwargs"]}
    # Nothing but the task is left of the download, and an evaluation's copy is a copy of it.
    assert sorted(left_over(workspace)) == sorted([f"{name}.yaml", *(f"{split}.jsonl" for split in task.files)])
    (copy,) = tasks.keep_copies(workspace, [read])
    assert json.loads((Path(copy) / tasks.COPY).read_text())["samples"] == data_sets.COUNT


def test_the_table_asks_by_the_rules_and_names_a_floor_and_a_licence() -> None:
    for name, task in table.load().items():
        assert task_rules.find_problem(task.config()) is None, name
        assert 0 <= task.floor <= 0.5 and task.items > 1000 and task.licence
        assert task.split in task.files and len(task.revision) == 40
    changed = table.load()["piqa"].model_copy(update={"revision": "0" * 40})
    assert changed.folder_name != table.load()["piqa"].folder_name, "another commit is another folder"


def test_a_hub_that_does_not_answer_is_one_sentence_with_the_way_around(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    with pytest.raises(SourceUnreachable, match="Cannot reach") as refused:
        named_tasks.get(workspace, "arc_easy")
    message = str(refused.value)
    assert "`whetstone tasks get arc_easy FOLDER`" in message and "ARC-Easy/test-00000-of-00001.parquet" in message
    assert left_over(workspace) == [] and named_tasks.missing(workspace, ["arc_easy"]) == ["arc_easy"]


def test_a_download_that_breaks_is_kept_apart_and_carried_on(hub: FakeHub, workspace: Workspace) -> None:
    file = hub.root / PIQA / "piqa_validation.parquet"
    hub.fault(drop_after=1000, drops=1)
    lines: list[str] = []
    named_tasks.get(workspace, "piqa", tell=lines.append)
    assert any(" at 1000 of " in line for line in lines), "the second connection went on"
    assert sum(entry["sent"] for entry in hub.served("/cdn")) == file.stat().st_size


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"cut": "piqa_validation.parquet"}, SourceUnreachable, "shorter than the hub says"),
        ({"drop_after": 0, "drops": 99}, DownloadFailed, "try again to carry on"),
        ({"status": 503, "times": 99}, SourceUnreachable, "status 503"),
        ({"status": 404, "times": 99}, SourceUnreachable, "/datasets/baber/piqa"),
    ],
)
def test_a_fetch_that_fails_leaves_no_task(
    hub: FakeHub, workspace: Workspace, fault: dict[str, object], kind: type[WhetstoneError], words: str
) -> None:
    hub.fault(**fault)
    with pytest.raises(kind, match=words) as refused:
        named_tasks.get(workspace, "piqa")
    assert "whetstone tasks get piqa FOLDER" in str(refused.value) and "job" not in str(refused.value)
    assert not (workspace.settings.home / "tasks" / "named").exists()
    with pytest.raises(InvalidTask, match="`whetstone tasks get piqa`"):
        tasks.find("piqa", workspace.settings.home)
    hub.fault()
    assert named_tasks.get(workspace, "piqa").path is not None, "the next try succeeds"


def test_a_gated_mirror_another_commit_and_a_missing_file_are_refused(hub: FakeHub, workspace: Workspace) -> None:
    revision = table.load()["piqa"].revision
    for settings, kind, words in [
        ({"sha": revision, "gated": "manual"}, AccessRefused, "ask for access"),
        ({"sha": "1" * 40}, UnknownModel, "has no revision"),
        ({"sha": revision, "private": True}, UnknownModel, "shows no data set `baber/piqa`"),
    ]:
        hub.settings(PIQA, **settings)
        with pytest.raises(kind, match=words):
            named_tasks.get(workspace, "piqa")
    hub.settings(PIQA, sha=revision)
    (hub.root / PIQA / "piqa_validation.parquet").rename(hub.root / PIQA / "other.parquet")
    with pytest.raises(SourceUnreachable, match=r"has no piqa_validation\.parquet in baber/piqa"):
        named_tasks.get(workspace, "piqa")
    assert named_tasks.missing(workspace, ["piqa"]) == ["piqa"]


@pytest.mark.parametrize("content", ["no parquet", "other columns", "no rows"])
def test_a_file_that_is_not_the_data_sets_is_refused(hub: FakeHub, workspace: Workspace, content: str) -> None:
    file = hub.root / PIQA / "piqa_validation.parquet"
    match content:
        case "no parquet":
            file.write_bytes(b"PAR1" + bytes(200) + b"PAR1")
        case "other columns":
            data_sets.write(file, "openai/gsm8k", data_sets.rows("openai/gsm8k", "test"))
        case _:
            data_sets.write(file, "baber/piqa", [])
    words = {"no parquet": "is not a Parquet file", "other columns": "no column `goal`", "no rows": "has no rows"}
    with pytest.raises(RequestError, match=words[content]):
        named_tasks.get(workspace, "piqa")
    assert left_over(workspace) == [], "nor is it kept for the next try"
    assert named_tasks.missing(workspace, ["piqa"]) == ["piqa"]


def test_files_of_ones_own_are_read_from_a_folder_laid_out_as_the_data_set(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    data_sets.store(tmp_path, "openai/gsm8k")
    folder = tmp_path / "datasets" / "openai" / "gsm8k"
    view = named_tasks.get(workspace, "gsm8k", str(folder))
    assert view.path is not None and (folder / "main" / "test-00000-of-00001.parquet").is_file(), "they stay"
    (read,) = tasks.find("gsm8k", workspace.settings.home)
    assert read.samples == data_sets.COUNT and set(read.data) == {"test", "train"}
    for place, words in [(tmp_path / "none", "There is no folder"), (tmp_path, "has no ARC-Easy/test-0")]:
        with pytest.raises(RequestError, match=words):
            named_tasks.get(workspace, "arc_easy", str(place))


def test_a_task_that_is_not_there_names_those_that_are(workspace: Workspace) -> None:
    with pytest.raises(InvalidTask, match=r"There is no task `arc_eazy`.*Did you mean arc_easy") as refused:
        tasks.find("arc_eazy", workspace.settings.home)
    assert "hellaswag" in str(refused.value) and "next-line" in str(refused.value)
    with pytest.raises(NotFound, match="There is no task `arc_eazy` to get"):
        named_tasks.get(workspace, "arc_eazy")
    assert [row.path for row in named_tasks.listing(workspace)] == [None] * len(table.load())


def test_a_gate_may_name_a_figure_before_the_data_is_here() -> None:
    figures = tasks.gate_figures(EvaluateOptions(tasks=("gsm8k", "piqa")))
    assert figures == [
        "task.gsm8k.exact_match,strict-match",
        "task.gsm8k.exact_match,flexible-extract",
        "task.piqa.acc",
        "task.piqa.acc_norm",
    ]


def test_rows_of_hellaswag_lose_their_marks_and_mmlu_takes_subjects_in_turn(tmp_path: Path) -> None:
    data_sets.store(tmp_path, "Rowan/hellaswag")
    data_sets.store(tmp_path, "cais/mmlu")
    written = {}
    for name in ("hellaswag", "mmlu"):
        task = table.load()[name]
        path = tmp_path / "datasets" / task.data_set / task.files[task.split]
        written[name] = [
            json.loads(line) for line in task_rows.read(str(path), list(task.columns), task.rows).splitlines()
        ]
    first, second = written["hellaswag"][:2]
    assert first == {
        "query": "Running a marathon: A man runs. He",
        "choices": [f"falls {place} times." for place in "0123"],
        "label": 0,
    }
    assert second["query"] == "Home and Garden: How to fold sheet 1. Lay it down. Keep it flat."
    assert second["choices"][1] == " Fold it 1 times. Then press."
    subjects = [row["subject"] for row in written["mmlu"]]
    assert subjects[:6] == [*data_sets.SUBJECTS] * 2 and len(subjects) == data_sets.COUNT


def test_a_home_that_is_read_only_gets_nothing(hub: FakeHub, workspace: Workspace) -> None:
    shutil.rmtree(workspace.settings.home / "tasks", ignore_errors=True)
    hub.forget()
    visitor = workspace.acting_as(workspace.actor.model_copy(update={"role": None}))
    with pytest.raises(RequestError, match="no role"):
        named_tasks.get(visitor, "piqa")
    assert hub.log() == []
