"""Which engine was faster with a model on this machine, read from the evaluations on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from backend.domain.errors import Unreadable
from backend.domain.evaluation.comparison import is_primary
from backend.domain.evaluation.document import Evaluation, VariantResult, read_evaluation
from backend.domain.load.load import Load
from backend.domain.recipe.engine_choice import EngineComparison
from backend.hardware import probe
from backend.service.workspace import Workspace
from backend.store import history

EVALUATIONS_READ = 40
OTHER_ENGINE = '"engine":'
"""Text that a document has if a variant names an engine other than vLLM, whose name is never written."""


class _Measured(NamedTuple):
    """A comparison of two engines with the same weights or the same import, and where it was made."""

    model_path: str
    machine: tuple[object, ...]
    load: Load
    comparison: EngineComparison


def find_comparisons(workspace: Workspace, model_path: str, load: Load) -> list[EngineComparison]:
    """Return what evaluations on this machine showed of engines with the model in that folder at that load, newest
    first. A ratio that no test showed to differ from 1 is left out."""
    # 1. The newest documents that have a second engine.
    with workspace.store.read() as session:
        rows = history.list_evaluations(session, limit=EVALUATIONS_READ)
        documents = [row.document for row in rows if OTHER_ENGINE in row.document]
    # 2. Their comparisons with this model, on this machine.
    here = machine_key(probe.probe())
    measured = [entry for document in documents for entry in _read(document)]
    return [
        entry.comparison
        for entry in measured
        if (entry.model_path, entry.machine, entry.load) == (model_path, here, load)
    ]


@lru_cache(maxsize=EVALUATIONS_READ)
def _read(document: str) -> tuple[_Measured, ...]:
    """Return the comparisons of engines in a stored document; none of one that cannot be read."""
    try:
        return tuple(_engine_comparisons(read_evaluation(document)))
    except Unreadable:
        return ()


def _engine_comparisons(document: Evaluation) -> Iterator[_Measured]:
    """Yield each shown difference in output tokens/s between two engines with the model of one folder."""
    results: Mapping[str, VariantResult] = {result.name: result for result in document.variants}
    for row in document.comparison:
        baseline, result = results[row.baseline].variant, results[row.variant].variant
        engines = (result.serving.engine_name, baseline.serving.engine_name)
        same_model = result.model_path is not None and result.model_path == baseline.model_path
        if is_primary(row.metric) and row.significant and row.ratio and same_model and engines[0] != engines[1]:
            comparison = EngineComparison(*engines, row.ratio, row.load.words, document.measured_at[:10])
            yield _Measured(str(result.model_path), machine_key(document.hardware), row.load, comparison)


def machine_key(hardware: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what must be the same for speeds to be comparable: processor, cores and accelerators."""
    accelerators = tuple(str(device["name"]) for device in hardware.get("accelerators", []))
    return hardware.get("cpu"), hardware.get("cores"), accelerators
