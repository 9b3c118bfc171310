"""What an evaluation keeps beside its document and its requests, so that it can be continued as if it had never
ended."""

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
"""(variant index, load)"""


class EarlierEvaluation(NamedTuple):
    """An evaluation that is continued."""

    document: Evaluation
    runs: dict[RunKey, list[MeasuredRun]]
    task_warnings: list[str]


def write_runs(folder: Path, runs: Mapping[RunKey, Sequence[MeasuredRun]], task_warnings: Iterable[str]) -> None:
    """All of each run but its requests, which `records` keeps."""
    kept = [
        {
            "variant": variant,
            "load": load.key,
            "block": block,
            "audit": run.audit.model_dump(mode="json"),
            "disturbance": run.disturbance.model_dump(mode="json"),
            "joules": run.joules,
            "counted": run.counted,
            "hits": run.hits,
        }
        for (variant, load), blocks in runs.items()
        for block, run in enumerate(blocks)
    ]
    (folder / RUNS).write_text(json.dumps({"task_warnings": list(task_warnings), "runs": kept}))


def read_earlier(continued: ContinuedEvaluation) -> EarlierEvaluation:
    """Raises NotContinued where a file is gone or damaged, Unreadable."""
    folder = Path(continued.folder)
    try:
        document = read_evaluation((folder / "evaluation.json").read_bytes())
        requests = read_records(folder / RECORDS)
        kept = json.loads((folder / RUNS).read_bytes())
        names = [result.name for result in document.variants]
        loads = {load.key: load for load in document.loads}
        runs: dict[RunKey, list[MeasuredRun]] = {}
        for each in sorted(kept["runs"], key=lambda each: int(each["block"])):
            records = requests[names[each["variant"]], each["load"], each["block"]]
            runs.setdefault((each["variant"], loads[each["load"]]), []).append(
                MeasuredRun(
                    records,
                    Audit.model_validate(each["audit"]),
                    Disturbance.model_validate(each["disturbance"]),
                    each["joules"],
                    each["counted"],
                    PrefixHits(*each["hits"]),
                )
            )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NotContinued(
            f"What {continued.evaluation} measured can no longer be read ({type(error).__name__}): measure again."
        ) from error
    return EarlierEvaluation(document, runs, kept["task_warnings"])
