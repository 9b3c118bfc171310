"""`whetstone optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.output import emit
from backend.cli.run import finish
from backend.service import Workspace, optimize, recipes, supervisors
from backend.service.jobs import JobView

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else there.")]


def register(app: typer.Typer) -> None:
    app.command("optimize")(command)


def command(
    model: Annotated[str, typer.Argument(help="A model id such as `starter`, or a folder.")],
    recipe: Annotated[Path, typer.Option(help="A recipe file, or the name of a bundled recipe.")],
    target: Annotated[str, typer.Option(help="Where it is to run: local, local:cpu, local:gpu0.")] = "local",
    seed: Annotated[int, typer.Option(help="Seed of the calibration sample.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it needs, start nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--detach", help="Wait for the end, or leave it to the supervisor.")] = False,
    json: Json = False,
) -> None:
    """Optimize a model with a recipe: a watched job that ends in a verified artifact."""
    workspace = service.open_workspace()
    prepared = optimize.prepare(workspace, model, recipes.read_file(recipe), target=target, seed=seed)
    if dry_run:
        steps = (
            "\n".join(f"  {i}. {step.title}" for i, step in enumerate(prepared.spec.plan.steps, 1)) or "  nothing: the original"
        )
        need = prepared.need
        needs = f"needs {need.disk_bytes / 1e6:.0f} MB of disk and about {need.memory_bytes / 1e6:.0f} MB of memory"
        document = {"plan": prepared.spec.plan, "need": need, "spec": prepared.spec}
        emit(document, as_json=json, text=f"{prepared.spec.model.id} with {prepared.spec.recipe.name}:\n{steps}\n  {needs}")
        return
    job = optimize.submit(workspace, prepared)
    if not wait:
        queued(workspace, job, as_json=json)
        return
    document = outcome(finish(workspace, job))
    emit(document, as_json=json, text=_text(document))


def queued(workspace: Workspace, job: JobView, *, as_json: bool) -> None:
    """Say that a job is queued, and by whom it will be run."""
    hint = "" if supervisors.alive(workspace) else "\nNo supervisor is running: `whetstone up` starts one and the job with it."
    emit(job, as_json=as_json, text=f"{job.id} is queued: {job.title}. Watch it with `whetstone jobs show {job.id}`.{hint}")


def outcome(job: JobView) -> dict[str, Any]:
    """The document other tools may rely on."""
    result = job.result
    names = ("artifact", "path", "seconds", "peak_rss_bytes", "quality", "bytes_before", "bytes_after")
    return {"job": job.id, "state": str(job.state), **{name: result.get(name) for name in names}}


def _text(document: dict[str, Any]) -> str:
    quality = document["quality"] or {}
    before, after = document["bytes_before"] / 1e6, document["bytes_after"] / 1e6
    lines = [
        f"{document['artifact']} is ready in {document['path']}",
        f"  weights {before:.1f} -> {after:.1f} MB in {document['seconds']:.0f} s",
    ]
    if quality.get("kl_mean") is not None:
        change = f"{quality['perplexity_before']:.2f} -> {quality['perplexity_after']:.2f}"
        lines.append(f"  perplexity {change}, mean KL divergence {quality['kl_mean']:.5f}")
    return "\n".join(lines + [f"Next: whetstone evaluate starter {document['artifact']}"])
