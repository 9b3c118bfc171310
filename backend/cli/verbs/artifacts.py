"""`whetstone artifacts ...`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.options import auto_bits
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, say_left_out, table
from backend.cli.text.estimates import compilation_text
from backend.cli.verbs.jobs import Mine
from backend.domain.errors import RequestError
from backend.domain.figures import counted
from backend.domain.launch_commands.engines import ENGINES
from backend.present.source_names import short_name
from backend.service.jobs import artifact_storage, artifacts, gguf_export
from backend.service.models import models
from backend.service.plans import cases, neuron_compilation
from backend.service.serving import launch_commands

app = typer.Typer(no_args_is_help=True)
MOST_DAYS = 36_500
ArtifactId = Annotated[str, typer.Argument(help="An artifact id, as `whetstone artifacts list` shows it.")]


@app.command("list")
def list_artifacts(mine: Mine = False, json: Json = False) -> None:
    """List artifacts, newest first."""
    workspace = service.open_workspace()
    artifact_views = artifacts.listing(workspace, owner=workspace.actor.name if mine else None)
    rows = [
        (
            view.id,
            short_name(view.model),
            view.recipe,
            view.bytes / 1e6,
            view.owner,
            f"{view.created_at:%Y-%m-%d %H:%M}",
        )
        for view in artifact_views
    ]
    none = "No artifacts that this version can read." if say_left_out(workspace, "artifact") else "No artifacts yet."
    text = table(("artifact", "model", "recipe", "MB", "by", "created (UTC)"), rows) if rows else none
    emit(artifact_views, as_json=json, text=text)


@app.command()
def show(artifact: ArtifactId, json: Json = False) -> None:
    """Show one artifact with its files."""
    view = artifacts.show(service.open_workspace(), artifact)
    files = "\n".join(f"  {file.sha256[:12]}  {file.size:>12,}  {file.path}" for file in view.manifest.files)
    stored = view.manifest.parent.stored
    made_of = f"\n{view.model}: {stored.sentence}" if stored else ""
    emit(view, as_json=json, text=f"{view.id}: {view.model} with {view.recipe}, {view.path}{made_of}\n{files}")


@app.command()
def verify(artifact: ArtifactId, json: Json = False) -> None:
    """Check the hash of every file against the manifest. Exit 1 if a byte differs."""
    artifact_view = artifacts.verify(service.open_workspace(), artifact)
    document = {"artifact": artifact_view.id, "verified": True, "files": len(artifact_view.manifest.files)}
    emit(
        document,
        as_json=json,
        text=f"{artifact_view.id}: {len(artifact_view.manifest.files)} files match the manifest.",
    )


@app.command()
def fetch(artifact: ArtifactId, json: Json = False) -> None:
    """Print a local folder with the verified files, fetched from the bucket if necessary."""
    folder = artifacts.fetch(service.open_workspace(), artifact)
    emit({"artifact": artifact, "folder": str(folder)}, as_json=json, text=str(folder))


@app.command()
def launch(
    artifact: Annotated[str, typer.Argument(help="An artifact id, a model id or a folder.")],
    engine: Annotated[
        str, typer.Option(help=f"An engine that is not started here: {', '.join(name for name in ENGINES)}.")
    ],
    json: Json = False,
) -> None:
    """Print the command that serves it with SGLang, TGI or TensorRT-LLM in its makers' container. Nothing is started.

    Whetstone has never run these commands. Evaluate the server by its address when it runs.
    """
    launched = launch_commands.prepare(service.open_workspace(), artifact, engine)
    notes = "\n".join(f"# {note}" for note in launched.notes)
    evaluated = f"# When it runs: whetstone evaluate {artifact} {launched.url}"
    emit(launched._asdict(), as_json=json, text=f"{notes}\n{launched.command}\n{evaluated}")


@app.command()
def export(
    artifact: ArtifactId,
    form: Annotated[str, typer.Option("--as", help="The form of the file: gguf.")] = "gguf",
    out: Annotated[Path, typer.Option(help="A folder, or the path of the new file.")] = Path(),
    json: Json = False,
) -> None:
    """Write an artifact as one file for other programs: GGUF, which llama.cpp, Ollama and LM Studio read."""
    if form != "gguf":
        raise RequestError(f"`--as {form[:20]}` is no form that is written: use `--as gguf`.")
    exported = gguf_export.export(service.open_workspace(), artifact, out)
    types = ", ".join(f"{count} in {kind}" for kind, count in exported.types.items())
    line = f"{exported.path}: {exported.bytes / 1e6:,.1f} MB, matrices: {types}."
    emit(exported, as_json=json, text=f"{line}\nNext: llama-server --model {exported.path}")


@app.command()
def lookup(
    model: Annotated[str, typer.Argument(help="A model id such as `starter`, a published one, or a folder.")],
    recipe: Annotated[Path, typer.Option(help="A recipe file, or the name of a bundled recipe.")],
    target: Annotated[str, typer.Option(help="A Neuron target such as neuron:ml.inf2.48xlarge.")],
    json: Json = False,
) -> None:
    """Show whether a Neuron job would compile or reuse a cached result."""
    workspace = service.open_workspace()
    case = cases.resolve(
        workspace, models.resolve_facts(workspace, model), auto_bits.choose_recipe(recipe, None), target
    )
    preview = neuron_compilation.preview(workspace, case)
    emit(preview, as_json=json, text=compilation_text(preview))


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    unused_for: Annotated[
        float | None,
        number_option(
            "Also remove artifacts of this age that no job, preset, endpoint or evaluation uses.",
            0,
            MOST_DAYS,
            metavar="DAYS",
        ),
    ] = None,
    grace: Annotated[
        float, number_option("Leave unreferenced files of a younger age.", 0, 24 * MOST_DAYS, metavar="HOURS")
    ] = 24.0,
    json: Json = False,
) -> None:
    """Delete unused files: of deleted artifacts and abandoned uploads. Files that a job may still need stay."""
    aged = None if unused_for is None else timedelta(days=unused_for)
    collection = artifact_storage.collect_garbage(
        service.open_workspace(), unused_for=aged, grace=timedelta(hours=grace), dry_run=dry_run
    )
    named = f"{', '.join(collection.artifacts)}: " if collection.artifacts else ""
    verb = "would be removed" if dry_run else "removed"
    emit(
        collection,
        as_json=json,
        text=f"{named}{counted(collection.contents, 'content')} {verb}, {collection.bytes / 1e6:,.1f} MB freed.",
    )


@app.command()
def delete(artifact: ArtifactId, json: Json = False) -> None:
    """Delete an artifact and its files."""
    artifacts.delete(service.open_workspace(), artifact)
    emit({"artifact": artifact, "deleted": True}, as_json=json, text=f"{artifact} is deleted.")
