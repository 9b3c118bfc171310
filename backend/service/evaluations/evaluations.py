"""Evaluations: prepare and submit a job from variants and options; list and show its documents."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend import endpoint, files
from backend.catalog.text import held_out_text
from backend.domain.errors import GateFailed, InvalidOptions, InvalidWorkload, NotFound
from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Variant, read_evaluation
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.jobs.terms import Terms
from backend.domain.limits import fail_conditions
from backend.domain.limits.fail_conditions import FailCondition
from backend.domain.limits.option_rules import validate_options as check_together
from backend.domain.recipe.serving.source_settings import parse_source
from backend.domain.roles import Action
from backend.domain.validation import readable_rows, validate_fields
from backend.domain.what_if.slice_means import with_slice_means
from backend.domain.workload import generators
from backend.hardware import engine_status
from backend.service import paths
from backend.service.evaluations import tasks, workloads
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import endpoint_variants, preflight, variants
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.tables import EvaluationRow

TEXTS = tuple(held_out_text.BUNDLED)
"""Held-out texts that are bundled."""
DOCUMENTS_CACHED = 16
"""Parsed documents kept in memory: a few more than a comparison shows. Fifty variants at twenty levels take about 50
MB."""


class EvaluationView(Frozen):
    """An evaluation as screens and tools see it."""

    id: str
    job_id: str
    title: str
    baseline: str
    path: str
    owner: str = ""
    created_at: datetime
    document: Evaluation


class EvaluationTitle(Frozen):
    """The columns of an evaluation that a list shows."""

    id: str
    title: str
    owner: str
    created_at: datetime


def read_options(**fields: object) -> EvaluateOptions:
    """Validate load options. Raises InvalidOptions with one sentence."""
    chosen = validate_fields(EvaluateOptions, {k: v for k, v in fields.items() if v is not None}, InvalidOptions)
    check_together(chosen)
    return chosen


def prepare(
    workspace: Workspace,
    sources: list[str],
    chosen: EvaluateOptions,
    *,
    engine: str | None = None,
    anyway: bool = False,
) -> EvaluateSpec:
    """Resolve every variant and read the workload. `engine` serves those that name none; `anyway` allows variants whose
    quality is below the floor.

    Raises BelowFloor, UnknownModel, InvalidModel, NotFound, InvalidWorkload, InvalidTask, EngineMissing,
    ImpossibleStack.
    """
    resolved = variants.distinct_names(
        [
            variants.resolve(workspace, variants.with_engine(source, engine), streams=_streams(chosen))
            for source in sources
        ]
    )
    variants.check_served(workspace, resolved)
    variants.check_floor(workspace, resolved, anyway=anyway)
    return make_spec(workspace, resolved, chosen)


def _streams(chosen: EvaluateOptions) -> int:
    """Return the streams of the first level, for which an open engine is chosen; 1 for an open loop."""
    first = chosen.loads[0]
    return round(first.value) if first.is_closed else 1


def make_spec(workspace: Workspace, resolved: list[Variant], chosen: EvaluateOptions) -> EvaluateSpec:
    """Return the checked specification for resolved variants. Raises ReadOnly in a demonstration."""
    workspace.check(Action.SUBMIT)
    # 1. Check the models' files, and whether they can chat.
    preflight.check_variants(workspace.settings.cache, resolved, scored=chosen.quality)
    mute = preflight.why_no_chat(workspace.settings.cache, resolved)
    if mute is not None and (chosen.endpoint == "chat" or chosen.workload == workloads.CHAT):
        raise InvalidOptions(f"A chat cannot be asked of {mute} Leave the chat workload and the chat endpoint out.")
    chosen = chosen if mute is not None else workloads.fit_to_variants(chosen, resolved)
    # 2. Check addresses, workload, tasks and held-out text.
    for variant in resolved:
        if variant.url is not None:
            endpoint.check_bearer(chosen.bearer_env, endpoint.parse_address(variant.url))
    workloads.check(chosen, resolved)
    tasks.check(workspace, chosen, resolved)
    held_out_text.check(_resolve_held_out_text(chosen))
    # 3. Check the lossless option, and that the engines are installed.
    if chosen.lossless and not any(variant.speculation and variant.kind != "url" for variant in resolved):
        raise InvalidOptions(
            "No variant served here speculates, so there is nothing to hold its answers against: leave lossless out."
        )
    for variant in resolved:
        if variant.kind != "url":
            engine_status.server_program(workspace.settings, variant)
    return EvaluateSpec(variants=tuple(_with_prefix_cache(variant, chosen) for variant in resolved), options=chosen)


def _with_prefix_cache(variant: Variant, chosen: EvaluateOptions) -> Variant:
    """Set the prefix cache of a variant that is served here, as the evaluation asks; a setting of its own is kept.
    Raises InvalidOptions."""
    if variant.kind == "url" or chosen.prefix_cache not in {"on", "off"}:
        return variant
    if "prefix_caching" in parse_source(variant.source).settings:
        return variant
    if chosen.prefix_cache == "on" and (variant.neuron or {}).get("stack") == "nxd-inference":
        message = (
            f"{variant.name} was compiled without the blocks that a prefix cache keeps (NxD Inference): leave {{}} out."
        )
        raise InvalidOptions(message, "prefix_cache")
    serving = variant.serving.model_copy(update={"prefix_caching": chosen.prefix_cache == "on"})
    return variant.model_copy(update={"serving": serving})


def read_gates(written: Sequence[str], chosen: EvaluateOptions, *, waits: bool) -> list[FailCondition]:
    """Read the conditions of a pipeline (`domain.gates`). Raises InvalidGate before anything is submitted."""
    gates = [fail_conditions.parse_condition(text) for text in written]
    if gates and not waits:
        raise fail_conditions.InvalidGate("it is judged at the end; leave out {}.", "detach")
    fail_conditions.check_conditions(gates, chosen, tasks.gate_figures(chosen))
    return gates


def check_gates(document: Evaluation, written: Sequence[FailCondition]) -> None:
    """Raises GateFailed with every place where a condition holds."""
    breaches = fail_conditions.find_breaches(document, written)
    if breaches:
        raise GateFailed(
            f"{len(breaches)} figures break their limits: {'; '.join(breach.words for breach in breaches)}."
        )


def submit(
    workspace: Workspace, spec: EvaluateSpec, *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Freeze the specification and queue its job. Raises as `freeze` does."""
    return jobs.submit(workspace, freeze(workspace, spec), title(spec), submission=submission, terms=terms)


def title(spec: EvaluateSpec) -> str:
    return f"Evaluate {', '.join(variant.name for variant in spec.variants)}"


def freeze(workspace: Workspace, spec: EvaluateSpec) -> EvaluateSpec:
    """Add copies of the workload and the tasks by hash, whether answers have fixed lengths, and facts of SageMaker
    endpoints.

    Raises InvalidWorkload where its file is gone since, NotFound, NotNow for an endpoint that does not serve.
    """
    workspace.check(Action.SUBMIT)
    # 1. Copy workload and tasks, so that later changes of their files do not matter.
    copy = workloads.keep_copy(workspace, spec.options, spec.variants)
    task_copies = tasks.keep_copies(workspace, tasks.check(workspace, spec.options, spec.variants))
    # 2. Decide whether answers have fixed lengths.
    forced = spec.options.ignore_eos
    if forced is None:  # a server of another make may not know it, and all are asked the same
        ours = all(variant.kind != "url" for variant in spec.variants)
        exact_lengths = spec.options.workload in generators.WORKLOAD_KINDS or (
            copy.reading is not None and copy.reading.lengths is not None
        )
        forced = ours and exact_lengths
    changed: dict[str, Any] = {
        "workload": str(copy.file),
        "columns": {},
        "time_unit": "auto",
        "tasks": task_copies,
        "ignore_eos": forced,
        "quality_text": _copy_held_out_text(workspace, spec.options),
    }
    # 3. Add facts of SageMaker endpoints.
    variants = tuple(endpoint_variants.with_aws_facts(workspace, variant) for variant in spec.variants)
    options = spec.options.model_copy(update=changed)
    reading = spec.workload_reading or copy.reading
    return spec.model_copy(update={"variants": variants, "options": options, "workload_reading": reading})


def _resolve_held_out_text(chosen: EvaluateOptions) -> str | None:
    """Resolve the held-out text: the name of a bundled one, or a path. Raises InvalidWorkload if there is no such
    file."""
    named = chosen.quality_text
    if named is None or named in held_out_text.BUNDLED:
        return named
    path = paths.find_file(named)
    if path is None:
        names = ", ".join(held_out_text.BUNDLED)
        raise InvalidWorkload(
            f"There is no held-out text `{named[:120]}`: give a text or JSONL file, or one of {names}."
        )
    return str(path)


def _copy_held_out_text(workspace: Workspace, chosen: EvaluateOptions) -> str | None:
    """Copy the text under its hash, since the file may change before the job reads it."""
    text = _resolve_held_out_text(chosen)
    if text is None or text in held_out_text.BUNDLED:
        return text
    content = Path(text).read_bytes()
    path = workspace.settings.home / "texts" / hashlib.sha256(content).hexdigest()[:16] / Path(text).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)
    return str(path)


def _view(row: EvaluationRow) -> EvaluationView:
    fields = {name: getattr(row, name) for name in EvaluationView.model_fields if name != "document"}
    return EvaluationView(**fields, document=_read(row.document))


@lru_cache(maxsize=DOCUMENTS_CACHED)
def _read(document: str) -> Evaluation:
    """Parse a stored document and give its levels the figures that are shown; cached, since a page reads it again at
    every click."""
    return with_slice_means(read_evaluation(document))


def show(workspace: Workspace, evaluation_id: str) -> EvaluationView:
    """Raises NotFound."""
    with workspace.store.read() as session:
        return _view(history.get_evaluation(session, evaluation_id))


def listing(
    workspace: Workspace,
    *,
    baselines: Sequence[str] = (),
    owner: str | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[EvaluationView]:
    """Return evaluations, newest first, optionally only those of a baseline with one of these names, or of an owner."""
    with workspace.store.read() as session:
        return readable_rows(
            history.list_evaluations(session, baselines=baselines, owner=owner, limit=limit, offset=offset), _view
        )


def count(workspace: Workspace, *, owner: str | None = None) -> int:
    """Return the number of evaluations, of one owner if given."""
    with workspace.store.read() as session:
        return history.count_evaluations(session, owner)


def report_file(workspace: Workspace, evaluation_id: str) -> bytes:
    """Return the path of the report, one offline HTML file. Raises NotFound, also if the file is missing."""
    file = Path(show(workspace, evaluation_id).path) / "report.html"
    if not file.is_file():
        raise NotFound(
            f"The report of {evaluation_id} is no longer at {file}: its figures are still here as JSON and CSV."
        )
    return file.read_bytes()


def list_titles(
    workspace: Workspace, *, words: str = "", owner: str | None = None, limit: int = 200, offset: int = 0
) -> list[EvaluationTitle]:
    """Return titles, newest first, without documents. All `words` must occur in the title or id, in any case."""
    with workspace.store.read() as session:
        rows = history.list_evaluation_titles(session, words=words, owner=owner, limit=limit, offset=offset)
    return [
        EvaluationTitle(id=id_, title=title, owner=whose, created_at=created) for id_, title, whose, created in rows
    ]


def read_progress_points(workspace: Workspace, job_id: str) -> list[dict[str, Any]]:
    """Return approximate results of a running evaluation: variant, concurrency, block, output tokens/s.

    Only the latest attempt counts. Raises NotFound.
    """
    since = jobs.show(workspace, job_id).started_at
    with workspace.store.read() as session:
        events = history.list_points(session, job_id)
    return [event.data for event in events if since is None or event.at >= since]
