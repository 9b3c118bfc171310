"""The compile step of a job for Neuron: fetched from the cache, or compiled by its stack in its environment and put
there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.artifacts import compiled_results
from backend.domain.errors import WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.neuron.software_stacks import STACKS
from backend.hardware import engine_status
from backend.serving.neuron import FOLDER


def compile_for_neuron(
    plan: CompilePlan, model: Path, draft: Path | None, output: Path, progress: Progress, *, device: bool
) -> dict[str, Any]:
    """Fill `output`/compiled; what the manifest says of it. `device`: the job has one to show it on.

    Raises EngineMissing, WorkError with the compiler's own sentence.
    """
    settings = configuration.load()
    cache, folder = compiled_results.open_cache(settings), output / FOLDER
    progress.phase("cache", "Looking for it among what was compiled before", weight=0.2)
    entry = cache.fetch(plan.key, folder)
    if entry is not None:
        progress.note(f"Fetched from the cache under {plan.key}: nothing was compiled.")
        return {"compile_key": {**plan.fields, "key": plan.key, "cached": True}, "versions": entry.versions}
    versions, proof = _compile(plan, model, draft, folder, compiled_results.graphs_folder(settings), progress, device)
    cache.put(plan.key, plan.model, plan.fields, folder, versions)
    return {"compile_key": {**plan.fields, "key": plan.key, "cached": False, **proof}, "versions": versions}


def _compile(
    plan: CompilePlan, model: Path, draft: Path | None, folder: Path, graphs: Path, progress: Progress, device: bool
) -> tuple[dict[str, str], dict[str, Any]]:
    from backend.engines.libraries import library_client
    from backend.engines.neuron import graph_cache
    from backend.engines.neuron.compilation import CompileRequest, CompileResult

    python = engine_status.engine_python(configuration.load(), STACKS[plan.stack].environment)
    for name in graph_cache.remove_failed(graphs):
        progress.warn(
            f"The graph {name} failed in an earlier compilation and would not be tried again: its entry was removed."
        )
    folder.mkdir(parents=True)
    graphs.mkdir(parents=True, exist_ok=True)
    request = CompileRequest(
        plan=plan, model_dir=model, draft_dir=draft, out_dir=folder, cache_dir=graphs, device=device
    )
    compile_result = CompileResult.model_validate(library_client.ask(plan.stack, python, request, progress))
    if (here := compile_result.versions.get("neuronx-cc")) != plan.compiler:
        raise WorkError(f"The compiler is {here} and the job was planned for {plan.compiler}: submit it again.")
    return compile_result.versions, {"proof": compile_result.proof} if compile_result.proof else {}
