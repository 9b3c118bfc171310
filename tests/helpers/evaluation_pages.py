"""Two variants that the tests of Evaluate and Compare measure, as a job in any state and as finished evaluations."""

from __future__ import annotations

from typing import Any

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.jobs import EvaluateSpec, JobState
from backend.service import Workspace
from backend.service.jobs.jobs import JobView
from tests import simulated, studio

URL_A, URL_B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def evaluate_job(home: Workspace, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    variants = tuple(Variant(name=name, source=name, kind="url", url=name) for name in (URL_A, URL_B))
    spec = EvaluateSpec(variants=variants, options=EvaluateOptions())
    return studio.put(home, spec, "Evaluate two", state, **changes)


def two_evaluations(home: Workspace) -> list[str]:
    first = simulated.evaluation(per_hour=1.2)
    other = simulated.evaluation(["original", "w8a8"], [1.0, 1.5], per_hour=None).model_copy(
        update={"hardware": {"cpu": "Another CPU", "cores": 8}}
    )
    return [studio.evaluation(home, first, "e-1", "First"), studio.evaluation(home, other, "e-2", "Second")]
