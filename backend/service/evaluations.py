"""Evaluations: from variants and options to a queued job, and the documents that came of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from backend.domain.errors import NotFound, RequestError
from backend.domain.evaluation import EvaluateOptions, Evaluation, Variant
from backend.domain.jobs import EvaluateSpec
from backend.hardware import engines
from backend.service import jobs, variants, workloads
from backend.service.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.tables import EvaluationRow


class InvalidOptions(RequestError):
    """An option of the evaluation is wrong."""


class EvaluationView(BaseModel):
    """An evaluation as screens and tools see it."""

    model_config = ConfigDict(frozen=True)

    id: str
    job_id: str
    title: str
    baseline: str
    path: str
    created_at: datetime
    document: Evaluation


class EvaluationTitle(BaseModel):
    """What a list of evaluations shows."""

    model_config = ConfigDict(frozen=True)

    id: str
    title: str
    created_at: datetime


def options(**fields: object) -> EvaluateOptions:
    """Validate load options. Raises InvalidOptions with one sentence."""
    try:
        chosen = EvaluateOptions.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise InvalidOptions(f"--{name} is wrong: {first['msg'][0].lower()}{first['msg'][1:]}.") from None
    if any(level < 1 for level in chosen.concurrency) or not chosen.concurrency:
        raise InvalidOptions("--concurrency is wrong: every level is a whole number of at least 1, such as 1,4,16.")
    if len(set(chosen.concurrency)) != len(chosen.concurrency):
        raise InvalidOptions("--concurrency is wrong: a level stands there twice.")
    return chosen


def prepare(workspace: Workspace, sources: list[str], chosen: EvaluateOptions) -> EvaluateSpec:
    """Resolve every variant and read the workload.

    Raises UnknownModel, InvalidModel, NotFound, InvalidWorkload, EngineMissing, ImpossibleStack.
    """
    resolved = variants.distinct_names([variants.resolve(workspace, source) for source in sources])
    variants.check_served(workspace, resolved)
    return of_variants(workspace, resolved, chosen)


def of_variants(workspace: Workspace, resolved: list[Variant], chosen: EvaluateOptions) -> EvaluateSpec:
    """The frozen specification over variants that are resolved already. Raises ReadOnly in a demonstration."""
    workspace.check_writable()
    workloads.facts(chosen.workload)
    if max(chosen.concurrency) > 4096:
        raise InvalidOptions("--concurrency is wrong: one load generator serves at most 4096 streams.")
    if any(variant.kind != "url" for variant in resolved):
        engines.engine_python(workspace.settings, "serve")
    path = str(workloads.path(chosen.workload))
    return EvaluateSpec(variants=tuple(resolved), options=chosen.model_copy(update={"workload": path}))


def submit(workspace: Workspace, spec: EvaluateSpec, *, submission: str | None = None) -> JobView:
    """Queue it."""
    names = ", ".join(variant.name for variant in spec.variants)
    return jobs.submit(workspace, spec, f"Evaluate {names}", submission=submission)


def _view(row: EvaluationRow) -> EvaluationView:
    fields = {name: getattr(row, name) for name in EvaluationView.model_fields if name != "document"}
    return EvaluationView(**fields, document=Evaluation.model_validate_json(row.document))


def show(workspace: Workspace, evaluation_id: str) -> EvaluationView:
    """Raises NotFound."""
    with workspace.store.read() as session:
        return _view(history.evaluation(session, evaluation_id))


def listing(workspace: Workspace, *, baseline: str | None = None, limit: int = 100, offset: int = 0) -> list[EvaluationView]:
    """Newest first; `baseline` keeps those measured against the variant of that name."""
    with workspace.store.read() as session:
        return [_view(row) for row in history.evaluations(session, baseline=baseline, limit=limit, offset=offset)]


def report(workspace: Workspace, evaluation_id: str) -> bytes:
    """The report, one HTML file that needs no network. Raises NotFound, also where its file is gone."""
    file = Path(show(workspace, evaluation_id).path) / "report.html"
    if not file.is_file():
        raise NotFound(f"The report of {evaluation_id} is no longer at {file}: its figures are still here as JSON and CSV.")
    return file.read_bytes()


def titles(workspace: Workspace, *, words: str = "", limit: int = 200) -> list[EvaluationTitle]:
    """Newest first, without their documents; `words` must all stand in the title or the id, in any case."""
    with workspace.store.read() as session:
        rows = history.evaluation_titles(session, words=words, limit=limit)
    return [EvaluationTitle(id=id_, title=title, created_at=created) for id_, title, created in rows]


def points(workspace: Workspace, job_id: str) -> list[dict[str, Any]]:
    """What a running evaluation has counted so far, approximate: variant, concurrency, block, output tokens/s.

    Of the job's latest attempt. Raises NotFound.
    """
    since = jobs.show(workspace, job_id).started_at
    with workspace.store.read() as session:
        found = history.points(session, job_id)
    return [event.data for event in found if since is None or event.at >= since]
