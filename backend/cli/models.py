"""`whetstone models ...`: folders of one's own in the catalog."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.optimize import Json
from backend.cli.output import emit, table
from backend.service import models

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[str, typer.Argument(help="A folder with config.json, a tokenizer and safetensors weights.")]


@app.command("import")
def import_(folder: Folder, json: Json = False) -> None:
    """Put a folder into the catalog. Nothing is copied."""
    card = models.remember(service.open_workspace(), folder).card
    emit(card, as_json=json, text=f"{card.id} is in the catalog: {card.path}")


@app.command("list")
def list_models(json: Json = False) -> None:
    """The folders that were imported, latest first."""
    found = models.remembered(service.open_workspace())
    rows = [(known.card.id, "yes" if known.present else "no", known.card.path) for known in found]
    emit(found, as_json=json, text=table(("model", "there", "folder"), rows))


@app.command()
def forget(folder: Folder, json: Json = False) -> None:
    """Take a folder out of the catalog. The folder and what was made from it stay."""
    models.forget(service.open_workspace(), folder)
    emit({"forgotten": folder}, as_json=json, text=f"{folder} is no longer in the catalog.")
