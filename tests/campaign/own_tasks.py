"""Prints what lm-eval's own tasks ask, and what ours of the same name ask, of the same small data sets.

    python -m tests.campaign.own_tasks ROOT FOLDERS SUBJECTS    (the last two as JSON)

Runs under the `quality` interpreter. ROOT/datasets holds the data sets as the hub has them; `datasets.load_dataset`
reads them there in place of the hub, and nothing else of lm-eval is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
from lm_eval.tasks import TaskManager

from backend.evaluate.tasks import lm_eval_process

SEED = 1234
"""The seed with which lm-eval draws examples, if none is given."""


def main(root: Path, folders: list[str], subjects: list[str]) -> None:
    ours = {name: document([task]) for name, task in lm_eval_process._load({"folders": folders}).items()}
    patch_datasets(root / "datasets", subjects)
    manager = TaskManager()
    parts = {"mmlu": [f"mmlu_{subject}" for subject in subjects]}
    own = {name: document([manager.load([each])["tasks"][each] for each in parts.get(name, [name])]) for name in ours}
    print(json.dumps({"ours": ours, "own": own}))


def patch_datasets(root: Path, subjects: list[str]) -> None:
    load = datasets.load_dataset

    def load_stored(path: str, name: str | None = None, **_: Any) -> Any:
        files = [file for file in sorted((root / path).rglob("*.parquet")) if name is None or is_of(file, name)]
        splits = {
            split: next((str(file) for file in files if split in file.name), str(files[0]))
            for split in ("train", "validation", "test", "dev")
        }
        stored = load("parquet", data_files=splits)
        return stored.filter(lambda row: row["subject"] == name) if name in subjects else stored

    datasets.load_dataset = load_stored


def is_of(file: Path, name: str) -> bool:
    """Tell whether the file is of that configuration; those of MMLU's subjects are rows of `all`."""
    return file.parent.name in {name, "all"}


def document(tasks: list[Any]) -> dict[str, Any]:
    """Return every request with its answer, and how the answers are scored."""
    requests: list[Any] = []
    for task in tasks:
        task.set_fewshot_seed(SEED)
        task.build_all_requests()
        requests += [
            [instance.request_type, *instance.args, task.doc_to_target(instance.doc)] for instance in task.instances
        ]
    first = tasks[0]
    metrics = {name: first._metric_fn_kwargs.get(name, {}) for name in sorted(first._metric_fn_list)}
    return {"requests": requests, "metrics": metrics, "filters": first.config.filter_list}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
