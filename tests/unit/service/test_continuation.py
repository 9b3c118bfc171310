"""More blocks would not be of the same thing: refused in one sentence that says what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from backend.artifacts import artifact_folder
from backend.domain.errors import NotContinued, RequestError
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.load import prompt_lines
from backend.hardware import engine_status, probe
from backend.service import Workspace
from backend.service.evaluations import continuation
from backend.settings import ASSETS
from backend.store.tables import EvaluationRow
from tests.simulated import evaluation


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


Store = Callable[..., str]


@pytest.fixture
def store(home: Workspace, model: Path, tmp_path: Path) -> Store:
    """Puts a document there as if it had been measured here on `model`, but for what the caller changes."""

    def put(**changes: Any) -> str:
        result = evaluation(names=("a", "b"), speeds=(1.0, 1.01), noise=0.2)
        variant = result.variants[0].variant.model_copy(update={"model_path": str(model)})
        update = {"variant": variant, "weights_sha256": artifact_folder.served_files(variant)}
        results = [each.model_copy(update=update) for each in result.variants]
        facts = {"variants": results, "hardware": probe.probe(), "versions": engine_status.list_versions(home.settings)}
        options = EvaluateOptions(workload=str(ASSETS / "workloads" / "starter-code.jsonl"), concurrency=(1, 4, 16))
        document = result.model_copy(update={"options": options, **facts, **changes})
        folder = tmp_path / "e-1"
        folder.mkdir()
        for name in continuation.FILES_NEEDED:
            (folder / name).touch()
        row = EvaluationRow(
            id="e-1", job_id="j-1", title="t", baseline="a", path=str(folder), document=document.model_dump_json()
        )
        with home.store.session() as session:
            session.add(row)
        return "e-1"

    return put


def changed_hardware(**changes: Any) -> dict[str, Any]:
    return {**probe.probe(), **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hardware": changed_hardware(cpu="Other Processor 9000")}, "the processor was Other Processor 9000 and is "),
        ({"hardware": changed_hardware(cores=77)}, "the number of cores was 77 and is "),
        ({"hardware": changed_hardware(memory_bytes=3 << 30)}, "it had 3 GiB of memory, and here are "),
        (
            {"hardware": changed_hardware(accelerators=[{"name": "H9", "driver": "1"}])},
            r"its accelerators were H9 \(driver 1\), and here: ",
        ),
        ({"versions": {"vllm": "0.0.1"}}, "vllm was 0.0.1 and is "),
        ({"options": EvaluateOptions(sweep=("ttft_p95<=300ms",))}, "it is a search"),
    ],
)
def test_another_machine_engine_or_a_search_is_refused_by_name(
    home: Workspace, store: Store, changes: dict[str, Any], says: str
) -> None:
    if "versions" in changes:  # the packages that are the same on both sides stand in no sentence
        changes = {"versions": {**engine_status.list_versions(home.settings), "vllm": "0.0.1"}}
    identity = store(**changes)
    with pytest.raises(NotContinued, match=f"e-1 cannot be continued: {says}"):
        continuation.prepare(home, identity, 4)


def test_blocks_of_an_earlier_version_are_not_mixed_with_todays(home: Workspace, store: Store, tmp_path: Path) -> None:
    """Its blocks have other numbers of requests, and none of them alternate."""
    identity = store()
    file = tmp_path / "e-1" / continuation.RECORDS
    table = pyarrow.table({"variant": ["a"], "load": ["closed-1"], "block": [0]})
    pyarrow.parquet.write_table(table, file)
    with pytest.raises(NotContinued, match="an earlier version measured it"):
        continuation.prepare(home, identity, 4)
    pyarrow.parquet.write_table(table.append_column("slice", [[0]]), file)
    with pytest.raises(NotContinued, match="its workload is no longer at"):  # the next check
        continuation.prepare(home, identity, 4)


def test_a_model_that_changed_or_is_gone_is_refused_by_name(home: Workspace, store: Store, model: Path) -> None:
    identity = store()
    (model / "model.safetensors").write_bytes(b"others!")
    with pytest.raises(NotContinued, match=r"the files of `a` in .* are not those that were measured"):
        continuation.prepare(home, identity, 4)
    (model / "model.safetensors").unlink()
    model.rmdir()
    with pytest.raises(NotContinued, match="`a` is no longer at"):
        continuation.prepare(home, identity, 4)


def test_requests_that_are_gone_and_too_many_blocks_are_refused(home: Workspace, store: Store, tmp_path: Path) -> None:
    identity = store()
    with pytest.raises(RequestError, match="0 blocks cannot be measured"):
        continuation.prepare(home, identity, 0)
    (tmp_path / "e-1" / "runs.json").unlink()
    with pytest.raises(NotContinued, match=r"its runs\.json is no longer in"):
        continuation.prepare(home, identity, 4)


@pytest.mark.parametrize(
    ("load", "has", "begins"),
    [
        ({"concurrency": (1,), "requests": 10}, 36 + 12 * 9, 0),
        ({"concurrency": (1,), "requests": 10}, 36 + 12 * 8, 5),
        ({"concurrency": (1,), "requests": 10}, 36 + 12 * 3, None),
        ({"concurrency": (1,), "requests": 10, "prefix_cache": "per-run"}, 50, 0),
        ({"concurrency": (1,), "seconds": 3.0}, 500, 5),
    ],
)
def test_lines_go_on_where_there_are_as_many_and_come_round_where_servers_are_new(
    load: dict[str, Any], has: int, begins: int | None
) -> None:
    """Five blocks and four more: behind the others, anew, or not at all."""
    assert prompt_lines.continuation_origin(EvaluateOptions(**load, repeats=9), has, 5, greedy=True) == begins
