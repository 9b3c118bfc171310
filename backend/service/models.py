"""Models: from what a person writes to a card."""

from __future__ import annotations

from pathlib import Path

from backend.catalog import bundled
from backend.domain.errors import UnknownModel
from backend.domain.model import ModelCard
from backend.service.workspace import Workspace


def resolve(workspace: Workspace, source: str) -> ModelCard:
    """The card of a bundled id or a local folder.

    Raises UnknownModel where it is neither, InvalidModel where the folder is no model.
    """
    card = bundled.card(source)
    if card is not None:
        return card
    if Path(source).expanduser().is_dir():
        return bundled.folder_card(source)
    looks_like_path = source.startswith((".", "/", "~"))
    what = "folder" if looks_like_path else "model"
    known = ", ".join(bundled.ids())
    raise UnknownModel(f"There is no {what} `{source}`: give a folder with config.json and safetensors, or one of {known}.")


def catalog(workspace: Workspace) -> list[ModelCard]:
    """Every bundled model."""
    return [card for card in map(bundled.card, bundled.ids()) if card is not None]


def draft_for(workspace: Workspace, model: ModelCard, wanted: str | None) -> ModelCard | None:
    """The draft a `speculate` step means: `auto` or nothing is the provided one, else a model id or folder."""
    if wanted in {None, "auto"}:
        return resolve(workspace, model.draft) if model.draft else None
    assert wanted is not None
    return resolve(workspace, wanted)
