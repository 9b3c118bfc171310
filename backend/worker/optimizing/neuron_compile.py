"""Compiles a model for Neuron: fetches the result from the cache, or lets the stack compile it and stores it there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import settings as configuration
from backend.artifacts import compiled_results
from backend.domain.errors import WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.neuron.software_stacks import STACKS
from backend.hardware import engine_status
from backend.serving.neuron import FOLDER

if TYPE_CHECKING:
    from backend.engines.neuron.compilation import CompileRequest


def compile_for_neuron(
    plan: CompilePlan, model: Path, draft: Path | None, output: Path, progress: Progress, *, device: bool
) -> dict[str, Any]:
    """Fill `output`/compiled and return the fields of the manifest that describe it.

    `device`: this machine has a Neuron device, so the result is run once as a proof. Raises EngineMissing, and
    WorkError with the compiler's own sentence.
    """
    from backend.engines.neuron.compilation import CompileRequest

    # 1. Fetch from the cache what was compiled by the same plan.
    settings = configuration.load()
    cache, folder = compiled_results.open_cache(settings), output / FOLDER
    progress.phase("cache", "Looking for it among what was compiled before", weight=0.2)
    entry = cache.fetch(plan.key, folder)
    if entry is not None:
        progress.note(f"Fetched from the cache under {plan.key}: nothing was compiled.")
        return {"compile_key": {**plan.fields, "key": plan.key, "cached": True}, "versions": entry.versions}

    # 2. Else compile, and store the result for the next job.
    request = CompileRequest(
        plan=plan,
        model_dir=model,
        draft_dir=draft,
        out_dir=folder,
        cache_dir=compiled_results.graphs_folder(settings),
        device=device,
    )
    versions, proof = _compile(request, progress)
    cache.put(plan.key, plan.model, plan.fields, folder, versions)
    return {"compile_key": {**plan.fields, "key": plan.key, "cached": False, **proof}, "versions": versions}


def _compile(request: CompileRequest, progress: Progress) -> tuple[dict[str, str], dict[str, Any]]:
    """Compile in the stack's environment; return the versions that did it, and the proof if there was a device."""
    from backend.engines.libraries import library_client
    from backend.engines.neuron import graph_cache
    from backend.engines.neuron.compilation import CompileResult

    # 1. Remove the graphs that failed, which the compiler would never try again.
    plan = request.plan
    python = engine_status.engine_python(configuration.load(), STACKS[plan.stack].environment)
    for name in graph_cache.remove_failed(request.cache_dir):
        progress.warn(
            f"The graph {name} failed in an earlier compilation and would not be tried again: its entry was removed."
        )

    # 2. Compile, and refuse the result of another compiler than the plan's.
    request.out_dir.mkdir(parents=True)
    request.cache_dir.mkdir(parents=True, exist_ok=True)
    result = CompileResult.model_validate(library_client.ask(plan.stack, python, request, progress))
    compiler = result.versions.get("neuronx-cc")
    if compiler != plan.compiler:
        raise WorkError(f"The compiler is {compiler} and the job was planned for {plan.compiler}: submit it again.")
    return result.versions, {"proof": result.proof} if result.proof else {}
