"""Reads from the evaluations on record what serving settings did on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from backend.domain.errors import Unreadable
from backend.domain.evaluation.comparison import is_primary
from backend.domain.evaluation.document import Evaluation, Variant, read_evaluation
from backend.domain.evaluation.outcome import Outcome
from backend.domain.recipe.serving.source_settings import SETTINGS
from backend.domain.recipe.serving_engines import EngineName
from backend.hardware import probe
from backend.service.models.measured_engines import EVALUATIONS_READ, machine_key
from backend.service.workspace import Workspace
from backend.store import history


class SettingComparison(NamedTuple):
    """Output tokens/s with a setting against the same variant with another value of it. `ratio` is new / before."""

    setting: str
    value: object
    before: object
    engine: EngineName
    load: str
    ratio: float
    ci95: tuple[float, float] | None
    outcome: Outcome
    day: str


def find_comparisons(workspace: Workspace, model_path: str, setting: str) -> list[SettingComparison]:
    """Return what evaluations on this machine measured of a setting with the model in that folder, newest first."""
    with workspace.store.read() as session:
        documents = [row.document for row in history.list_evaluations(session, limit=EVALUATIONS_READ)]
    here = machine_key(probe.probe())
    measured = [entry for document in documents for entry in _read(document)]
    return [
        comparison
        for path, machine, comparison in measured
        if (path, machine, comparison.setting) == (model_path, here, setting)
    ]


@lru_cache(maxsize=EVALUATIONS_READ)
def _read(document: str) -> tuple[tuple[str, tuple[object, ...], SettingComparison], ...]:
    """Return the comparisons of a stored document with the model's folder and the machine; none if it is unreadable."""
    try:
        evaluation = read_evaluation(document)
    except Unreadable:
        return ()
    machine = machine_key(evaluation.hardware)
    return tuple((path, machine, comparison) for path, comparison in _compare_settings(evaluation))


def _compare_settings(document: Evaluation) -> Iterator[tuple[str, SettingComparison]]:
    """Yield the comparisons of two variants that differ by one setting alone, with the model's folder."""
    variants = {result.name: result.variant for result in document.variants}
    for row in document.comparison:
        before, after = variants[row.baseline], variants[row.variant]
        changed = find_changed_setting(before, after)
        if is_primary(row.metric) and row.ratio is not None and changed is not None:
            values = getattr(after.serving, changed), getattr(before.serving, changed)
            engine, day = after.serving.engine_name, document.measured_at[:10]
            yield (
                str(after.model_path),
                SettingComparison(changed, *values, engine, row.load.words, row.ratio, row.ci95, row.outcome, day),
            )


def find_changed_setting(before: Variant, after: Variant) -> str | None:
    """Return the one serving setting by which two variants differ; None if more or something else differs."""
    if before.url or after.url or before.serving.engine_name != after.serving.engine_name:
        return None
    weights = [(each.model_path, each.gguf, each.speculation, each.neuron) for each in (before, after)]
    changed = [name for name in SETTINGS if getattr(before.serving, name) != getattr(after.serving, name)]
    return changed[0] if weights[0] == weights[1] and len(changed) == 1 else None
