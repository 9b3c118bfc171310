"""`whetstone artifacts ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.output import emit, table
from backend.cli.verbs.optimize import Json
from backend.service.jobs import artifacts

app = typer.Typer(no_args_is_help=True)
ArtifactId = Annotated[str, typer.Argument(help="An artifact id, as `whetstone artifacts list` shows it.")]


@app.command("list")
def list_artifacts(json: Json = False) -> None:
    """Artifacts, newest first."""
    found = artifacts.listing(service.open_workspace())
    rows = [(a.id, a.model, a.recipe, a.bytes / 1e6, a.created_at.strftime("%Y-%m-%d %H:%M")) for a in found]
    text = table(("artifact", "model", "recipe", "MB", "created (UTC)"), rows) if rows else "No artifacts yet."
    emit(found, as_json=json, text=text)


@app.command()
def show(artifact: ArtifactId, json: Json = False) -> None:
    """One artifact with its manifest."""
    found = artifacts.show(service.open_workspace(), artifact)
    files = "\n".join(f"  {file.sha256[:12]}  {file.size:>12,}  {file.path}" for file in found.manifest.files)
    emit(found, as_json=json, text=f"{found.id}: {found.model} with {found.recipe}, {found.path}\n{files}")


@app.command()
def verify(artifact: ArtifactId, json: Json = False) -> None:
    """Re-hash every file against the manifest; exit 1 where a byte differs."""
    found = artifacts.verify(service.open_workspace(), artifact)
    document = {"artifact": found.id, "verified": True, "files": len(found.manifest.files)}
    emit(document, as_json=json, text=f"{found.id}: {len(found.manifest.files)} files are as the manifest says.")


@app.command()
def delete(artifact: ArtifactId, json: Json = False) -> None:
    """Remove an artifact and its files."""
    artifacts.delete(service.open_workspace(), artifact)
    emit({"artifact": artifact, "deleted": True}, as_json=json, text=f"{artifact} is deleted.")
