"""A workload where no tokenizer can count it: made all the same, under a name that says so; never refused on a
guess."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backend.domain.errors import InvalidModel, InvalidWorkload, RequestError
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.service import Workspace
from backend.service.evaluations import workloads


@pytest.fixture
def mute(tmp_path: Path, starter_target: Path) -> Path:
    """The starter without its tokenizer.json."""
    folder = tmp_path / "mute"
    shutil.copytree(starter_target, folder, ignore=shutil.ignore_patterns("tokenizer.json"))
    return folder


def test_a_generated_workload_says_in_its_name_that_its_lengths_are_estimated(home: Workspace) -> None:
    assert (
        workloads.prepare(home, EvaluateOptions(workload="summarization")).file.stem
        == "summarization-estimated-lengths"
    )


def test_what_has_no_tokenizer_cannot_measure_a_workload(home: Workspace, mute: Path) -> None:
    options = EvaluateOptions(workload="summarization")
    with pytest.raises(InvalidModel, match=r"mute has no tokenizer: put its tokenizer\.json beside config\.json\."):
        workloads.prepare(home, options, str(mute))
    with pytest.raises(RequestError, match=r"Tokenizer is wrong: http:\S+ has no tokenizer\.json: name a model here\."):
        workloads.prepare(home, options, "http://127.0.0.1:9")


def test_a_prompt_that_nobody_can_count_is_left_to_the_server(tmp_path: Path, mute: Path, starter_target: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "word " * 3000}) + "\n")
    options = EvaluateOptions(workload=str(file), prefix_cache="off")
    variant = Variant(name="mute", source="mute", kind="model", model_path=str(mute))
    assert workloads.context_tokens(variant) == 2048
    workloads.check(options, [variant])
    with pytest.raises(InvalidWorkload, match="Line 1 of the workload has"):
        workloads.check(options, [variant.model_copy(update={"name": "starter", "model_path": str(starter_target)})])
