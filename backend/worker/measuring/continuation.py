"""Stores the runs of an evaluation beside its document and requests, so that a later job can continue it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from backend.domain.errors import NotContinued
from backend.domain.evaluation.blocks.sequential_tests import ContinuedEvaluation
from backend.domain.evaluation.document import Evaluation, read_evaluation
from backend.domain.evaluation.prefix_cache import PrefixHits
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance
from backend.worker.measuring.records import RECORDS, read_records
from backend.worker.measuring.runs import MeasuredRun

RUNS = "runs.json"
RunKey = tuple[int, Load]
"""Index of the variant, and the load."""


class EarlierEvaluation(NamedTuple):
    """The evaluation that is continued."""

    document: Evaluation
    runs: dict[RunKey, list[MeasuredRun]]
    task_warnings: list[str]


def write_runs(folder: Path, runs: Mapping[RunKey, Sequence[MeasuredRun]], task_warnings: Iterable[str]) -> None:
    """Write everything about each run except its requests, which `records` writes."""
    # Everything but the requests: their file names the variant, the load and the block too.
    rows = []
    for (variant, load), runs_of_load in runs.items():
        for block, run in enumerate(runs_of_load):
            row = {
                "variant": variant,
                "load": load.key,
                "block": block,
                "audit": run.audit.model_dump(mode="json"),
                "disturbance": run.disturbance.model_dump(mode="json"),
                "joules": run.joules,
                "counted": run.counted,
                "hits": run.hits,
            }
            rows.append(row)
    (folder / RUNS).write_text(json.dumps({"task_warnings": list(task_warnings), "runs": rows}))


def read_earlier(continued: ContinuedEvaluation) -> EarlierEvaluation:
    """Read the evaluation to continue. Raises NotContinued if a file is missing or damaged, Unreadable."""
    folder = Path(continued.folder)
    try:
        # 1. Read the three files.
        document = read_evaluation((folder / "evaluation.json").read_bytes())
        requests = read_records(folder / RECORDS)
        stored = json.loads((folder / RUNS).read_bytes())

        # 2. Put the requests of each run back, block by block.
        names = [result.name for result in document.variants]
        loads = {load.key: load for load in document.loads}
        runs: dict[RunKey, list[MeasuredRun]] = {}
        for row in sorted(stored["runs"], key=lambda row: int(row["block"])):
            run = MeasuredRun(
                requests[names[row["variant"]], row["load"], row["block"]],
                Audit.model_validate(row["audit"]),
                Disturbance.model_validate(row["disturbance"]),
                row["joules"],
                row["counted"],
                PrefixHits(*row["hits"]),
            )
            runs.setdefault((row["variant"], loads[row["load"]]), []).append(run)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NotContinued(
            f"What {continued.evaluation} measured can no longer be read ({type(error).__name__}): measure again."
        ) from error
    return EarlierEvaluation(document, runs, stored["task_warnings"])
