"""`whetstone catalog ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.optimize import Json
from backend.cli.output import emit, table
from backend.service import models

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_models(json: Json = False) -> None:
    """The models that come with Whetstone."""
    found = models.catalog(service.open_workspace())
    rows = [(card.id, card.architecture, card.parameters / 1e6, card.vocabulary, card.max_positions) for card in found]
    emit(found, as_json=json, text=table(("model", "architecture", "M parameters", "vocabulary", "context"), rows))


@app.command()
def show(model: Annotated[str, typer.Argument(help="A model id or a folder.")], json: Json = False) -> None:
    """A model's card, read from config.json and the safetensors headers alone."""
    card = models.resolve(service.open_workspace(), model)
    document = card.model_dump(mode="json") | {"kv_bytes_per_token": card.kv_bytes_per_token}
    emit(document, as_json=json, text="\n".join(f"{name:22} {value}" for name, value in document.items()))
