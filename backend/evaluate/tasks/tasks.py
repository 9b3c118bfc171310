"""Scores lm-eval tasks on a server, in a process of its own under the `quality` interpreter. Knows nothing of variants.

lm-eval needs versions that the studio's environment does not have, and cannot be interrupted; a process can be ended.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backend import processes
from backend.domain.errors import WorkError
from backend.domain.evaluation.tasks.task_rules import DESCRIBED, SHARES
from backend.domain.evaluation.tasks.task_scores import SampledScore, TaskScore, with_samples
from backend.evaluate.tasks.lm_eval_process import KEY
from backend.settings import CHECKOUT

STREAMS = 4
"""Requests at a time."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LD_LIBRARY_PATH", "WHETSTONE_JOB")
"""Variables that the process inherits: no tokens of hubs or hosted APIs, no proxy to a server on this machine."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "TQDM_DISABLE": "1",
}
"""Variables that stop it from fetching or reporting anything: tasks and tokenizers are on this disk."""


class TaskServer(NamedTuple):
    """A server to score on; `url` ends with `/v1`, `tokenizer` is the model's folder, `bearer` its token.

    `context`: the tokens that it accepts, where it does not say; `streams`: requests at a time.
    """

    url: str
    served_name: str
    tokenizer: Path
    bearer: str | None = None
    context: int | None = None
    streams: int = STREAMS


def count_requests(python: Path, folders: Sequence[str], limit: int | None, cache: Path) -> dict[str, int]:
    """Return the number of requests by task, without asking a model. Raises WorkError for a task that is wrong."""
    counts: dict[str, int] = _ask(python, {**_request(folders, limit), "url": None}, cache)["requests"]
    return counts


def score_tasks(
    python: Path, folders: Sequence[str], limit: int | None, server: TaskServer, cache: Path
) -> list[SampledScore]:
    """Return every metric of every task; `folders` are the copies made by the service. Raises WorkError.

    `limit`: number of samples of each task, from the first; `cache`: folder for what the data library writes.
    """
    # Run lm-eval in its own environment against the server.
    target = {
        "url": server.url,
        "served_name": server.served_name,
        "tokenizer": str(server.tokenizer),
        "streams": server.streams,
        "context": server.context,
    }
    answer = _ask(python, {**_request(folders, limit), **target}, cache, server.bearer)
    # Name each score by the hash of its task and data, and say where they are from.
    documents = {document["name"]: document for document in map(_document, folders)}
    return [_scored(row, answer, documents[row["task"]]) for row in answer["scores"] if row["value"] is not None]


def _request(folders: Sequence[str], limit: int | None) -> dict[str, Any]:
    return {"folders": list(folders), "limit": limit}


def _document(folder: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((Path(folder) / "task.json").read_text())
    return document


def _scored(row: dict[str, Any], answer: dict[str, Any], document: dict[str, Any]) -> SampledScore:
    fields = {name: row[name] for name in ("task", "metric", "value", "stderr", "samples", "higher_is_better")}
    metadata = document["config"].get("metadata") or {}
    task_score = TaskScore(
        **fields,
        **{name: metadata.get(name) for name in DESCRIBED},
        floor=_floor(row, metadata),
        items=document["samples"],
        harness=answer["harness"],
        sha256=document["sha256"],
        cut=answer["cut"][row["task"]],
    )
    return with_samples(task_score, {int(sample): value for sample, value in row["each"]})


def _floor(row: dict[str, Any], metadata: dict[str, Any]) -> float | None:
    """Return the share that guessing reaches: by the number of choices, else as the task says; None of other
    figures."""
    metric = row["metric"].partition(",")[0]
    if metric not in SHARES:
        return None
    is_chosen = row["chance"] is not None and metric.startswith("acc")
    return row["chance"] if is_chosen else metadata.get("floor")


def _ask(python: Path, request: dict[str, Any], cache: Path, bearer: str | None = None) -> dict[str, Any]:
    """Run the process and return its answer; any exception ends the process too.

    The token goes into the environment, since lm-eval logs its arguments.
    """
    # 1. Start it with a clean environment.
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ} | ({KEY: bearer} if bearer else {})
    folders = {"PYTHONPATH": str(CHECKOUT), "HF_HOME": str(cache), "HF_DATASETS_CACHE": str(cache / "datasets")}
    with subprocess.Popen(
        [str(python), "-m", "backend.evaluate.tasks.lm_eval_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**inherited, **OFFLINE, **folders},
    ) as process:
        # 2. Send the request and read one line.
        try:
            assert process.stdin is not None and process.stdout is not None
            answer = _exchange(process, json.dumps(request))
        except BaseException:
            process.kill()
            raise
        process.stdin.close()

    # 3. Turn failures into sentences.
    if answer is None:
        raise WorkError(f"lm-eval ended with exit code {process.returncode} without a result; the job's log says why.")
    if "error" in answer:
        raise WorkError(f"lm-eval could not score the tasks ({answer['error']}); the job's log has the rest.")
    return answer


def _exchange(process: subprocess.Popen[str], request: str) -> dict[str, Any] | None:
    assert process.stdout is not None
    if not processes.send_line(process, request):
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None
