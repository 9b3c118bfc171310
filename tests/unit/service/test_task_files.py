"""lm-eval tasks that are read before anything starts: what can be used, and the sentence for what cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.domain.errors import EngineMissing, InvalidOptions
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.recipe.recipe import Serving
from backend.service import Workspace
from backend.service.evaluations import evaluations, tasks
from backend.service.tasks import task_files
from backend.service.tasks.task_files import InvalidTask
from backend.settings import ASSETS
from tests.homes import open_home

ROWS = [{"question": f"{n} and {n} make", "choices": [str(2 * n), str(n)], "answer": 0} for n in range(1, 31)]
TASK: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "sums.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A task's file, with these settings changed (None leaves one out), beside its data."""

    def written(name: str = "sums.yaml", **changes: Any) -> Path:
        config = {key: value for key, value in {**TASK, **changes}.items() if value is not None}
        (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (tmp_path / name).write_text(yaml.safe_dump(config))
        return tmp_path / name

    return written


def test_a_task_is_read_with_its_samples_and_a_hash_of_both_files(write: Callable[..., Path]) -> None:
    content = task_files.read(write())
    assert (content.name, content.samples, list(content.data)) == ("sums", 30, ["test"])
    data = content.source.parent / "sums.jsonl"
    data.write_text(data.read_text() + json.dumps(ROWS[0]) + "\n")
    again = task_files.read(content.source)
    assert again.samples == 31 and again.sha256 != content.sha256


def test_what_comes_along_can_be_used() -> None:
    for name in tasks.bundled_names():
        (result,) = tasks.find(name)
        assert result.name == name and result.samples >= 20
        rows = [json.loads(line) for line in result.data["test"][0].read_text().splitlines()]
        held_out = (ASSETS / "text" / "held_out.txt").read_text()
        for row in rows:
            assert row["context"] + row["choices"][row["answer"]] in held_out
            assert len(set(row["choices"])) == 4
            assert not any(
                row["context"] + wrong in held_out for k, wrong in enumerate(row["choices"]) if k != row["answer"]
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_path": "allenai/ai2_arc"}, "asks for the data set `allenai/ai2_arc`, which would be fetched"),
        ({"dataset_path": None}, "names no data"),
        ({"metadata": "1.0"}, "`metadata` must be settings"),
        ({"metadata": {"floor": 25}}, "the share that guessing reaches, from 0 to 1"),
        ({"metadata": {"licence": ["MIT"]}}, "`licence` of metadata must be a text"),
        ({"description": "{{subject}}"}, "has no `subject`, which `description` asks for"),
        ({"dataset_kwargs": None}, "needs `dataset_kwargs`"),
        ({"dataset_kwargs": {"data_files": {"test": 3}}}, "needs `dataset_kwargs`"),
        ({"dataset_kwargs": {"data_files": "sums.jsonl", "trust_remote_code": True}}, "only have data_files"),
        ({"dataset_kwargs": {"data_files": {"test": "gone.jsonl"}}}, "gone.jsonl, which is not there"),
        (
            {"dataset_kwargs": {"data_files": {"test": "https://example.org/x.jsonl"}}},
            "would fetch https://example.org/x.jsonl",
        ),
        ({"dataset_kwargs": {"data_files": {"test": "a\0b"}}}, "not there"),
        ({"test_split": None}, "neither `test_split` nor `validation_split`"),
        ({"test_split": "train"}, "`test_split` is train, but data_files has test"),
        (
            {"metric_list": [{"metric": "accuracy"}]},
            "no metric `accuracy` for multiple_choice; there are acc, acc_norm",
        ),
        ({"metric_list": [{"metric": "exact_match", "hf_evaluate": True}]}, "would fetch the metric"),
        ({"metric_list": "acc"}, "`metric_list` must be a list"),
        ({"output_type": "essay"}, "`output_type` is essay"),
        ({"doc_to_choice": None}, "says no `doc_to_choice`"),
        ({"doc_to_text": None}, "says no `doc_to_text`"),
        (
            {"doc_to_text": "{{topic}}"},
            "Line 1 of sums.jsonl has no `topic`, which `doc_to_text` asks for; it has question",
        ),
        ({"doc_to_text": "{{question"}, "`doc_to_text` is no template"),
        ({"doc_to_choice": ["{{left}}", "{{right}}"]}, "has no `left`"),
        ({"task": None}, "`task` must be a name"),
        ({"task": "../up"}, "`task` must be a name"),
        ({"process_docs": "utils.clean"}, "`process_docs` needs code"),
        ({"include": "other.yaml"}, "`include` points to other tasks"),
        ({"metrics": ["acc"]}, "there is no setting `metrics`"),
        (
            {"dataset_kwargs": {"data_files": {"test": "sums.jsonl", "/elsewhere/x": "sums.jsonl"}}},
            "names a split '/elsewhere/x'",
        ),
        (
            {"dataset_kwargs": {"data_files": {"test": "sums.jsonl", "../../../X": "sums.jsonl"}}},
            "names a split '../../../X'",
        ),
        ({"output_type": ["multiple_choice"]}, "`output_type` is ['multiple_choice']"),
        ({"test_split": ["test"]}, "`test_split` is ['test'], but data_files has test"),
        ({"metric_list": [{"metric": ["acc"]}]}, "there is no metric `['acc']`"),
        ({"metadata": {"version": date(2026, 1, 1)}}, "neither text nor a finite number"),
        ({"metadata": {"version": float("nan")}}, "neither text nor a finite number"),
        ({"doc_to_text": "{{" + "(" * 5000}, "`doc_to_text` is no template"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused_in_a_sentence(
    write: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTask) as refused:
        task_files.read(write(**changes))
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"task: [", "is not valid YAML (line 1"),
        (b"just words", "must be settings"),
        (b"\xff\xfe\x00", "is not"),
        (b"process_docs: !function utils.clean\n", "`!function` needs code of its own"),
        (b"task: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        (b"task: 2026-99-99\n", "is not valid YAML"),
        (b"a: " + b"[" * 20_000, "nested too deeply"),
        (b"a: &a [x]\nb: [*a, *a]\n", "no anchors"),
        (b"#" * 100_001, "more than 0.1 MB"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(InvalidTask, match=r"x\.yaml") as refused:
        task_files.read(tmp_path / "x.yaml")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "Line 31 of sums.jsonl is not JSON"),
        ("[1]", "Line 31 of sums.jsonl is no object"),
        ("{}", "it has nothing"),
    ],
)
def test_every_row_is_read(write: Callable[..., Path], line: str, message: str) -> None:
    source = write()
    data = source.parent / "sums.jsonl"
    data.write_text(data.read_text() + line + "\n")
    with pytest.raises(InvalidTask) as refused:
        task_files.read(source)
    assert message in str(refused.value)
    data.write_text("\n")
    with pytest.raises(InvalidTask, match="has no rows"):
        task_files.read(source)


def test_a_folder_is_all_tasks_in_it_and_names_are_told(write: Callable[..., Path], tmp_path: Path) -> None:
    write(), write("more.yml", task="more")
    assert [task.name for task in tasks.find(str(tmp_path))] == ["more", "sums"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidTask, match="has no task"):
        tasks.find(str(tmp_path / "empty"))
    with pytest.raises(InvalidTask, match=r"There is no task `winogrande`.*next-line"):
        tasks.find("winogrande")


@pytest.fixture
def quality(tmp_path: Path) -> Workspace:
    """A home whose quality environment is installed, as far as anyone can see without starting it."""
    folder = tmp_path / "engines" / "quality"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "INSTALLED.json").write_text('{"name": "quality", "version": "0.4.13"}')
    return open_home(tmp_path / "home", engines=tmp_path / "engines")


LOCAL = Variant(name="starter", source="starter", kind="model", model_path="/models/starter")
AWAY = Variant(name="there", source="http://there/v1", kind="url", url="http://there/v1")


def test_without_the_environment_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    bare = open_home(tmp_path / "home", engines=tmp_path / "none")
    assert "whetstone engines install quality" in (tasks.missing_packages(bare) or "")
    with pytest.raises(EngineMissing, match="whetstone engines install quality"):
        tasks.check(bare, EvaluateOptions(tasks=("next-line",)), [LOCAL])
    assert tasks.check(bare, EvaluateOptions(), [LOCAL]) == []


def test_two_tasks_of_one_name_and_addresses_alone_are_refused(quality: Workspace, write: Callable[..., Path]) -> None:
    first, second = write(), write("again.yaml")
    with pytest.raises(InvalidTask, match="both called `sums`"):
        tasks.check(quality, EvaluateOptions(tasks=(str(first), str(second))), [LOCAL])
    with pytest.raises(InvalidTask, match="tokenizer"):
        tasks.check(quality, EvaluateOptions(tasks=("next-line",)), [AWAY])
    assert len(tasks.check(quality, EvaluateOptions(tasks=("next-line",)), [AWAY, LOCAL])) == 1


@pytest.mark.parametrize("engine", ["llama.cpp", "openvino"])
def test_other_engines_take_tasks_that_are_answered_in_text_only(
    quality: Workspace, write: Callable[..., Path], engine: str
) -> None:
    served = LOCAL.model_copy(update={"serving": Serving(engine=engine)})
    text = {"output_type": "generate_until", "doc_to_choice": None, "metric_list": [{"metric": "exact_match"}]}
    written = write("text.yaml", task="text", **text)
    assert len(tasks.check(quality, EvaluateOptions(tasks=(str(written),)), [LOCAL, served])) == 1
    with pytest.raises(InvalidTask, match=r"by which next-line would be scored.*such as gsm8k, can be scored"):
        tasks.check(quality, EvaluateOptions(tasks=(str(written), "next-line")), [LOCAL, served])


def test_a_job_works_with_a_copy_that_stays_as_it_was(quality: Workspace, write: Callable[..., Path]) -> None:
    contents = [task_files.read(write())]
    (folder,) = tasks.keep_copies(quality, contents)
    assert tasks.keep_copies(quality, contents) == (folder,)
    (contents[0].source.parent / "sums.jsonl").unlink()
    parsed = json.loads((Path(folder) / "task.json").read_text())
    assert parsed["sha256"] == contents[0].sha256 and folder.endswith(contents[0].sha256[:32])
    assert parsed["config"]["dataset_kwargs"] == {"data_files": {"test": ["test-0.jsonl"]}}
    assert len((Path(folder) / "test-0.jsonl").read_text().splitlines()) == 30


def test_a_limit_of_none_is_refused_in_the_options_own_words() -> None:
    with pytest.raises(InvalidOptions, match="Task limit is wrong: it must be at least 1"):
        evaluations.read_options(tasks=("next-line",), task_limit=0)
