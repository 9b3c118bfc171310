"""Models: from what a person writes to a card, and the folders that were imported."""

from __future__ import annotations

from pathlib import Path

from backend.catalog.bundled import models
from backend.catalog.cards import licence as licences
from backend.domain.errors import UnknownModel
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import Manifest
from backend.domain.machine.targets import nearest
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.service import paths
from backend.service.models import catalog_sync
from backend.service.workspace import Workspace
from backend.store import history
from backend.store import models as imported
from backend.store.tables import ModelRow

MAX_SHOWN = 200
"""Characters of a wrong name that a message repeats."""


def resolve(workspace: Workspace, source: str) -> ModelCard:
    """The card of a bundled id or a local folder.

    Raises UnknownModel where it is neither, InvalidModel where the folder is no model.
    """
    card = models.card(source)
    if card is not None:
        return card
    if paths.folder(source) is not None:
        return models.folder_card(source)
    looks_like_path = source.startswith((".", "/", "~"))
    what = "folder" if looks_like_path else "model"
    known = ", ".join(models.ids())
    shown = source if len(source) <= MAX_SHOWN else f"{source[:MAX_SHOWN]}…"
    raise UnknownModel(f"There is no {what} `{shown}`: give a folder with config.json and safetensors, or one of {known}.")


def catalog(workspace: Workspace) -> list[ModelCard]:
    """Every bundled model."""
    return [card for card in map(models.card, models.ids()) if card is not None]


class KnownModel(Frozen):
    """A model and whether its folder is still there."""

    card: ModelCard
    present: bool

    @property
    def source(self) -> str:
        """What `resolve` takes for it: the id of a bundled model, else its folder."""
        return self.card.id if self.card.origin == "starter" else self.card.path


def known(workspace: Workspace, *, limit: int = 100) -> list[KnownModel]:
    """Bundled models, then the folders that were imported, then those that artifacts were made from, each latest first."""
    with workspace.store.read() as session:
        remembered = [ModelCard.model_validate_json(row.card) for row in imported.listing(session, limit=limit)]
        rows = history.latest_artifacts_by_model(session, limit=limit)
        parents = [Manifest.model_validate_json(row.manifest).parent for row in rows]
    paths = {card.path for card in remembered}
    used = [card for card in parents if card.origin != "starter" and card.path not in paths]
    found = [KnownModel(card=card, present=True) for card in catalog(workspace)]
    return found + [KnownModel(card=card, present=_present(card)) for card in [*remembered, *used]]


def _present(card: ModelCard) -> bool:
    return (Path(card.path) / "config.json").is_file()


def licence(card: ModelCard) -> str | None:
    """What the model's folder says of its licence and where; None where it says nothing."""
    return licences.licence(Path(card.path))


def remember(workspace: Workspace, source: str) -> KnownModel:
    """Import a folder: the catalog lists it from now on. Nothing is copied; again is the same row with the card read anew.

    Raises UnknownModel, InvalidModel. A bundled model is there already and stays as it is.
    """
    card = resolve(workspace, source)
    if card.origin == "starter":
        return KnownModel(card=card, present=True)
    card = card.model_copy(update={"origin": "imported"})
    row = ModelRow(
        path=card.path, name=card.id, owner=workspace.settings.owner, licence=licence(card), card=card.model_dump_json()
    )
    with workspace.store.session() as session:
        imported.remember(session, row)
    return KnownModel(card=card, present=True)


def forget(workspace: Workspace, source: str) -> None:
    """Take an imported folder out of the catalog; the folder and what was made from it stay. Raises NotFound."""
    with workspace.store.session() as session:
        imported.forget(session, str(paths.resolved(source) or source))


def is_remembered(workspace: Workspace, card: ModelCard) -> bool:
    with workspace.store.read() as session:
        return imported.find(session, card.path) is not None


def remembered(workspace: Workspace, *, limit: int = 100) -> list[KnownModel]:
    """The imported folders, latest first."""
    with workspace.store.read() as session:
        cards = [ModelCard.model_validate_json(row.card) for row in imported.listing(session, limit=limit)]
    return [KnownModel(card=card, present=_present(card)) for card in cards]


def draft_for(workspace: Workspace, model: ModelCard, wanted: str | None) -> ModelCard | None:
    """The draft a `speculate` step means: `auto` or nothing is the provided one, else a model id or folder."""
    if wanted in {None, "auto"}:
        return resolve(workspace, model.draft) if model.draft else None
    assert wanted is not None
    return resolve(workspace, wanted)


def facts(workspace: Workspace, source: str) -> ModelFacts:
    """Like `resolve`, and also the models that are known by published facts alone, by JumpStart id or hub id.

    Raises UnknownModel with the nearest names, InvalidModel; InvalidCatalog where the catalog's files are wrong.
    """
    if models.card(source) is None and paths.folder(source) is None:
        found = catalog_sync.find(workspace, source)
        if found is not None:
            return found
    try:
        return resolve(workspace, source)
    except UnknownModel as error:
        near = nearest(source, [*models.ids(), *catalog_sync.names(workspace)])
        raise UnknownModel(f"{error} The nearest published ones are {', '.join(near)}.") from None


def draft_of(workspace: Workspace, model: ModelFacts, recipe: Recipe) -> ModelFacts | None:
    """The draft that the recipe means; None where it has none, or the model brings none."""
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or step.method != "draft":
        return None
    return draft_facts(workspace, model, step.draft)


def draft_facts(workspace: Workspace, model: ModelFacts, wanted: str | None) -> ModelFacts | None:
    """Like `draft_for`, for a model that may be known by published facts alone."""
    own = wanted in {None, "auto"}
    if isinstance(model, ModelCard) and (own or catalog_sync.find(workspace, wanted or "") is None):
        return draft_for(workspace, model, wanted)
    if own:
        return catalog_sync.draft_of(workspace, model)
    return facts(workspace, wanted or "")
