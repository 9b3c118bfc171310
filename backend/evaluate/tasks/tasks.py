"""Scores lm-eval tasks on a server, in a process of its own under the `quality` interpreter. Knows nothing of variants.

lm-eval wants versions that the studio's environment does not hold, and cannot be interrupted: as a process it can be
ended.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import WorkError
from backend.domain.evaluation.tasks.task_scores import SampledScore, TaskScore, with_samples
from backend.evaluate.tasks.lm_eval_process import KEY
from backend.settings import CHECKOUT

STREAMS = 4
"""Requests at a time."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LD_LIBRARY_PATH", "WHETSTONE_JOB")
"""What the process inherits: no tokens of hubs or hosted APIs, no proxy between it and a server on this machine."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "TQDM_DISABLE": "1",
}
"""Nothing is fetched, nothing is reported: tasks, tokenizers and models are on this disk."""


class TaskServer(NamedTuple):
    """Where a variant answers, up to and with `/v1`. `tokenizer` is the model's folder, `bearer` the token that it asks
    for."""

    url: str
    served_name: str
    tokenizer: Path
    bearer: str | None = None


def count_requests(python: Path, folders: Sequence[str], limit: int | None, cache: Path) -> dict[str, int]:
    """Requests by task, made without asking a model. Raises WorkError for a task that lm-eval cannot use."""
    found: dict[str, int] = _ask(python, {**_request(folders, limit), "url": None}, cache)["requests"]
    return found


def score_tasks(
    python: Path, folders: Sequence[str], limit: int | None, server: TaskServer, cache: Path
) -> list[SampledScore]:
    """Every metric of every task in `folders`, copies as `service.tasks` makes them. Raises WorkError.

    `limit`: the first so many samples of each; `cache` takes what the data library writes.
    """
    asked = {
        "url": server.url,
        "served_name": server.served_name,
        "tokenizer": str(server.tokenizer),
        "streams": STREAMS,
    }
    answer = _ask(python, {**_request(folders, limit), **asked}, cache, server.bearer)
    hashes = dict(map(_identity, folders))
    return [_scored(row, answer, hashes) for row in answer["scores"] if row["value"] is not None]


def _request(folders: Sequence[str], limit: int | None) -> dict[str, Any]:
    return {"folders": list(folders), "limit": limit}


def _identity(folder: str) -> tuple[str, str]:
    document = json.loads((Path(folder) / "task.json").read_text())
    return document["name"], document["sha256"]


def _scored(row: dict[str, Any], answer: dict[str, Any], hashes: dict[str, str]) -> SampledScore:
    fields = {name: row[name] for name in ("task", "metric", "value", "stderr", "samples", "higher_is_better")}
    task_score = TaskScore(
        **fields, harness=answer["harness"], sha256=hashes[row["task"]], cut=answer["cut"][row["task"]]
    )
    return with_samples(task_score, {int(sample): value for sample, value in row["each"]})


def _ask(python: Path, request: dict[str, Any], cache: Path, bearer: str | None = None) -> dict[str, Any]:
    """Whatever ends this call ends the process: a cancelled job waits for nothing. lm-eval logs its arguments, not this
    token."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ} | ({KEY: bearer} if bearer else {})
    places = {"PYTHONPATH": str(CHECKOUT), "HF_HOME": str(cache), "HF_DATASETS_CACHE": str(cache / "datasets")}
    with subprocess.Popen(
        [str(python), "-m", "backend.evaluate.tasks.lm_eval_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**kept, **OFFLINE, **places},
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            answer = _spoken(process, json.dumps(request))
        except BaseException:
            process.kill()
            raise
        process.stdin.close()
    if answer is None:
        raise WorkError(f"lm-eval ended with exit code {process.returncode} without a result; the job's log says why.")
    if "error" in answer:
        raise WorkError(f"lm-eval could not score the tasks ({answer['error']}); the job's log has the rest.")
    return answer


def _spoken(process: subprocess.Popen[str], request: str) -> dict[str, Any] | None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None
