"""Continues a stored evaluation with more blocks: obstacles, and the job that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.artifacts import artifact_folder
from backend.domain.errors import NotContinued, NotFound, RequestError
from backend.domain.evaluation.blocks.sequential_tests import ContinuedEvaluation
from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.figures import counted
from backend.domain.jobs.artifact import artifact_of
from backend.domain.jobs.jobs import LIVE, EvaluateSpec, JobState
from backend.domain.jobs.terms import Terms
from backend.domain.load import prompt_lines
from backend.domain.roles import Action
from backend.domain.workload.workload import parse_workload
from backend.hardware import engine_status, probe
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import history

MOST_BLOCKS = 1000
RECORDS = "records.parquet"
FILES_NEEDED = ("evaluation.json", RECORDS, "runs.json")


def continued_spec(view: EvaluationView, blocks: int, *, origin: int = 0) -> EvaluateSpec:
    """Return the specification for so many more blocks of the same variants and load, unchecked. Raises
    RequestError."""
    if not 1 <= blocks <= MOST_BLOCKS:
        raise RequestError(f"{blocks} blocks cannot be measured: give 1 to {MOST_BLOCKS:,}.")
    document = view.document
    done = document.options.repeats
    continued = ContinuedEvaluation(evaluation=view.id, folder=view.path, blocks=done, origin=origin)
    options = document.options.model_copy(update={"repeats": done + blocks, "until_decided": False})
    variants = tuple(result.variant for result in document.variants)
    return EvaluateSpec(
        variants=variants, options=options, continues=continued, workload_reading=document.workload.reading
    )


def prepare(workspace: Workspace, evaluation_id: str, blocks: int) -> EvaluateSpec:
    """Return the checked specification for so many more blocks of an evaluation.

    Raises NotFound, ReadOnly, EngineMissing; NotContinued if variants, machine or packages have changed.
    """
    workspace.check(Action.SUBMIT)
    view = evaluations.show(workspace, evaluation_id)
    spec = continued_spec(view, blocks)
    for why in _find_obstacles(workspace, view):
        raise NotContinued(f"{evaluation_id} cannot be continued: {why}.")
    for variant in spec.variants:
        if variant.kind != "url":
            engine_status.server_program(workspace.settings, variant)
    return continued_spec(view, blocks, origin=_first_line(view, spec))


def submit(
    workspace: Workspace, spec: EvaluateSpec, *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Queue the continuation. Its workload is frozen already: it is that of the evaluation."""
    title = f"{evaluations.title(spec)}: {counted(spec.options.repeats - spec.measured, 'more block')}"
    return jobs.submit(workspace, spec, title, submission=submission, terms=terms)


def _find_obstacles(workspace: Workspace, view: EvaluationView) -> Iterator[str]:
    """Yield each obstacle as the end of a sentence, the cheapest checks first."""
    document = view.document
    # 1. The evaluation itself.
    if document.options.sweep:
        yield "it is a search, which has no blocks; search again"
    if lost := next((result.name for result in document.variants if result.lost), None):
        yield f"`{lost}` stopped answering in it; measure again"
    if missing := next((name for name in FILES_NEEDED if not (Path(view.path) / name).is_file()), None):
        yield f"its {missing} is no longer in {view.path}; measure again"
    elif not _has_slices(Path(view.path) / RECORDS):
        yield "an earlier version measured it, in blocks of another size; measure again"
    # 2. Another continuation.
    for job in find_continuations(workspace, view.id):
        done = job.state is JobState.SUCCEEDED
        yield (
            f"{job.result.get('evaluation')} has done so; continue that one"
            if done
            else f"job {job.id} does so already"
        )
    # 3. The machine, its packages and the variants' files.
    yield from _machine_differences(workspace, document)
    yield from filter(None, (_variant_change(workspace, result) for result in document.variants))


def _has_slices(records: Path) -> bool:
    """Tell whether the requests were stored with the slice that each belongs to; a damaged file is the worker's to
    report."""
    import pyarrow.parquet

    try:
        return "slice" in pyarrow.parquet.read_schema(records).names
    except (OSError, ValueError):
        return True


def find_continuations(workspace: Workspace, evaluation_id: str) -> list[JobView]:
    """Return the jobs that continue it or have done so, without failed ones."""
    with workspace.store.read() as session:
        job_views = [jobs.view(row) for row in history.list_continuing(session, evaluation_id)]
    return [job for job in job_views if job.state in {*LIVE, JobState.QUEUED, JobState.SUCCEEDED}]


def _machine_differences(workspace: Workspace, document: Evaluation) -> Iterator[str]:
    """Yield how this machine and its packages differ from those of the measurement."""
    # The machine: processor, memory, accelerators.
    here = probe.probe()
    for name, words in (("cpu", "processor"), ("cores", "number of cores"), ("flags", "processor's features")):
        if here.get(name) != document.hardware.get(name):
            yield f"the {words} was {document.hardware.get(name)} and is {here.get(name)} here; measure again"
    if _gibibytes(here) != _gibibytes(document.hardware):
        yield f"it had {_gibibytes(document.hardware)} GiB of memory, and here are {_gibibytes(here)}; measure again"
    if _accelerator_names(here) != _accelerator_names(document.hardware):
        measured, present = _accelerators_text(document.hardware), _accelerators_text(here)
        yield f"its accelerators were {measured}, and here: {present}; measure again"
    # The packages that measure.
    then, now = document.versions, engine_status.list_versions(workspace.settings)
    for package in sorted({*then, *now}):
        if then.get(package) != now.get(package):
            before, after = then.get(package, "not installed"), now.get(package, "not installed")
            yield f"{package} was {before} and is {after} now; measure again"


def _gibibytes(hardware: dict[str, Any]) -> int:
    return round(float(hardware.get("memory_bytes") or 0) / 2**30)


def _accelerator_names(hardware: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(device["name"], device["driver"]) for device in hardware.get("accelerators", [])]


def _accelerators_text(hardware: dict[str, Any]) -> str:
    return ", ".join(f"{name} (driver {driver})" for name, driver in _accelerator_names(hardware)) or "none"


def _variant_change(workspace: Workspace, result: VariantResult) -> str | None:
    """Return how the variant's files differ from the measured ones; None if they do not, or for a URL."""
    path = result.variant.model_path
    if result.variant.stored_at is not None:
        return _bucket_change(workspace, result)
    if path is None:
        return None
    if not Path(path).is_dir():
        return f"`{result.name}` is no longer at {path}; measure again without it"
    if artifact_folder.served_files(result.variant) != result.weights_sha256:
        return f"the files of `{result.name}` in {path} are not those that were measured; measure again"
    return None


def _bucket_change(workspace: Workspace, result: VariantResult) -> str | None:
    """Compare by manifest: the files are verified when they are fetched for serving."""
    try:
        manifest = artifacts.show(workspace, artifact_of(result.variant) or result.variant.source).manifest
    except NotFound:
        return f"`{result.name}`, {result.variant.source}, is no longer there; measure again without it"
    if artifact_folder.served_of(manifest, result.variant) != result.weights_sha256:
        return f"the files of `{result.name}` are not those that were measured; measure again"
    return None


def _first_line(view: EvaluationView, spec: EvaluateSpec) -> int:
    """Return the workload line at which the new blocks begin. Raises NotContinued if there are too few lines."""
    # 1. Read the workload, which must be unchanged.
    file, options = Path(spec.options.workload), spec.options
    content = file.read_bytes() if file.is_file() else b""
    workload = parse_workload(file.stem, content) if content else None
    if workload is None or workload.sha256 != view.document.workload.sha256:
        raise NotContinued(f"{view.id} cannot be continued: its workload is no longer at {file}; measure again.")
    # 2. Find lines that were not used yet.
    has, turns = len(workload.prompts), workload.least_turns
    first_line = prompt_lines.continuation_origin(options, has, spec.measured, greedy=options.quality, turns=turns)
    served = [variant.name for variant in spec.variants if variant.kind == "url"]
    if first_line is None or (first_line and served):
        who = f", and `{served[0]}`, which is not started here, was asked the others" if served else ""
        raise NotContinued(
            f"{view.id} cannot be continued for so long: its workload has {counted(has, 'line')}{who}; ask for fewer "
            "blocks, or measure again with a longer workload."
        )
    return first_line
