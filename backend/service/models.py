"""Models: from what a person writes to a card."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from backend.catalog import bundled
from backend.domain.artifact import Manifest
from backend.domain.errors import UnknownModel
from backend.domain.model import ModelCard
from backend.service.workspace import Workspace
from backend.store import history

MAX_SHOWN = 200
"""Characters of a wrong name that a message repeats."""


def resolve(workspace: Workspace, source: str) -> ModelCard:
    """The card of a bundled id or a local folder.

    Raises UnknownModel where it is neither, InvalidModel where the folder is no model.
    """
    card = bundled.card(source)
    if card is not None:
        return card
    if _is_folder(source):
        return bundled.folder_card(source)
    looks_like_path = source.startswith((".", "/", "~"))
    what = "folder" if looks_like_path else "model"
    known = ", ".join(bundled.ids())
    shown = source if len(source) <= MAX_SHOWN else f"{source[:MAX_SHOWN]}…"
    raise UnknownModel(f"There is no {what} `{shown}`: give a folder with config.json and safetensors, or one of {known}.")


def _is_folder(source: str) -> bool:
    try:
        return Path(source).expanduser().is_dir()
    except (OSError, RuntimeError):  # a name too long for the disk; `~someone` who does not exist
        return False


def catalog(workspace: Workspace) -> list[ModelCard]:
    """Every bundled model."""
    return [card for card in map(bundled.card, bundled.ids()) if card is not None]


class KnownModel(BaseModel):
    """A model and whether its folder is still there."""

    model_config = ConfigDict(frozen=True)

    card: ModelCard
    present: bool

    @property
    def source(self) -> str:
        """What `resolve` takes for it: the id of a bundled model, else its folder."""
        return self.card.id if self.card.origin == "starter" else self.card.path


def known(workspace: Workspace, *, limit: int = 100) -> list[KnownModel]:
    """Bundled models, then the folders that artifacts were made from, latest first."""
    with workspace.store.read() as session:
        rows = history.latest_artifacts_by_model(session, limit=limit)
        parents = [Manifest.model_validate_json(row.manifest).parent for row in rows]
    used = [card for card in parents if card.origin != "starter"]
    found = [KnownModel(card=card, present=True) for card in catalog(workspace)]
    return found + [KnownModel(card=card, present=(Path(card.path) / "config.json").is_file()) for card in used]


def draft_for(workspace: Workspace, model: ModelCard, wanted: str | None) -> ModelCard | None:
    """The draft a `speculate` step means: `auto` or nothing is the provided one, else a model id or folder."""
    if wanted in {None, "auto"}:
        return resolve(workspace, model.draft) if model.draft else None
    assert wanted is not None
    return resolve(workspace, wanted)
