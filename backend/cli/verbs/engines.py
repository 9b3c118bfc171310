"""`whetstone engines ...`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from backend import service
from backend.cli.output import Json, emit, table
from backend.cli.submit_and_wait import Wait, outcome_document, submit_and_wait
from backend.service.machines import engines

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="An engine, as `whetstone engines list` shows it.")]


@app.command("list")
def list_engines(json: Json = False) -> None:
    """List engines: state, version, what each can do here or why it cannot."""
    engine_statuses = engines.listing(service.open_workspace())
    rows = [
        (engine.name, "installed" if engine.installed else "-", engine.version or "-", engine.reason or engine.can)
        for engine in engine_statuses
    ]
    emit(engine_statuses, as_json=json, text=table(("engine", "state", "version", "here"), rows))


@app.command()
def install(
    engine: Name,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Package index of the vendor, or a folder of wheels (for Neuron environments)."
        ),
    ] = None,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Install an engine into its own environment under .engines, as a job."""
    workspace = service.open_workspace()
    install = partial(engines.install, workspace, engine, index=index)
    ended = submit_and_wait(workspace, install, wait=wait, as_json=json)
    emit(outcome_document(ended), as_json=json, text=f"{engine} is installed.")


@app.command()
def remove(engine: Name, json: Json = False) -> None:
    """Delete an engine's environment."""
    workspace = service.open_workspace()
    ended = submit_and_wait(workspace, partial(engines.remove, workspace, engine))
    emit({"job": ended.id, "engine": engine, "removed": True}, as_json=json, text=f"{engine} is removed.")
