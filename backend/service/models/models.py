"""Models: from what a person writes to a card, and the folders that were imported."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend.catalog.bundled import models
from backend.catalog.cards import draft_head as heads
from backend.catalog.cards import gguf
from backend.catalog.cards import licence as licences
from backend.catalog.cards.card import read_card
from backend.domain.errors import ImpossibleStack, RequestError, UnknownModel
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import read_manifest
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.model.path_names import path_name
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.roles import Action
from backend.domain.similar_names import find_similar
from backend.domain.validation import read_stored, readable_rows
from backend.service import paths
from backend.service.jobs import artifacts
from backend.service.models import catalog_sync, preflight
from backend.service.workspace import Workspace
from backend.store import history
from backend.store import models as imported
from backend.store.tables import ModelRow

NAME = re.compile(r"[A-Za-z0-9][\w.@/+-]{0,99}", re.ASCII)
GENERIC = frozenset(
    {"model", "models", "checkpoint", "checkpoints", "final", "output", "out", "merged", "export", "weights", "hf"}
)
"""Names of folders that say nothing of what is in them."""
MAX_SHOWN = 200
"""Characters of a wrong name that a message repeats."""


def resolve(workspace: Workspace, source: str) -> ModelCard:
    """The card of a bundled id, a local folder, or a model that was imported, by its name.

    Raises UnknownModel where it is none of them, InvalidModel where the folder is no model.
    """
    # 1. A bundled model.
    card = models.card(source)
    if card is not None:
        return card
    # 2. An imported model, by folder or name.
    folder = _folder(workspace, source)
    with workspace.store.read() as session:
        row = imported.find(session, str(folder)) if folder else imported.find_by_name(session, source)
        names = []
        if row is None and folder is None:
            names = [model.name for model in imported.list_rows(session)]
    if row is not None:
        stored = {"id": row.name, "origin": "imported", "licence": _stored_licence(row)}
        return models.folder_card(row.path).model_copy(update=stored)
    # 3. Any other folder.
    if folder is not None:
        return models.folder_card(source, as_imported=_is_made_here(workspace, folder))
    # 4. In a demonstration, a model without weights.
    if (parent := _demonstration_card(workspace, source)) is not None:
        return parent
    # 5. Nothing: name the nearest models.
    if is_artifact(source):
        raise UnknownModel(_artifact_refusal(workspace, source))
    if source.lower().endswith(gguf.SUFFIX):
        raise UnknownModel(_gguf_refusal(source))
    what = "folder" if looks_like_path(source) else "model"
    known = ", ".join(dict.fromkeys([*find_similar(source, [*models.ids(), *names]), *models.ids()]))
    shown = source if len(source) <= MAX_SHOWN else f"{source[:MAX_SHOWN]}…"
    raise UnknownModel(
        f"There is no {what} `{shown}`: give a folder with config.json and safetensors, or one of {known}."
    )


def looks_like_path(source: str) -> bool:
    return source.startswith((".", "/", "~"))


def no_gguf_file(source: str) -> str:
    """Return the sentence for a GGUF file that is not there."""
    return f"There is no file `{source[:MAX_SHOWN]}`: check the path of the GGUF file."


def _gguf_refusal(source: str) -> str:
    """Return why a GGUF file is no model yet. Raises RequestError as `paths.find_file`."""
    if paths.find_file(source) is None:
        return no_gguf_file(source)
    return (
        f"`{source[:MAX_SHOWN]}` is a GGUF file: import it first, on the page Import or by `whetstone models import`."
    )


def resolve_with_notes(workspace: Workspace, source: str) -> ModelCard:
    """Like `resolve`, with what one look at the files says as notes. Raises InvalidModel besides where they are not
    sound."""
    return preflight.with_notes(workspace.settings.cache, resolve(workspace, source))


def _artifact_refusal(workspace: Workspace, artifact_id: str) -> str:
    """Why a recipe does not start from an artifact. Raises NotFound."""
    manifest = artifacts.show(workspace, artifact_id).manifest
    already = "already speculates" if manifest.recipe.step("speculate") else "is optimized already"
    sentence = f"{artifact_id} was made of {manifest.parent.id} by {manifest.recipe.name} and {already}"
    return f"{sentence}: start from {manifest.parent.id} with one recipe that has all steps."


def _folder(workspace: Workspace, source: str) -> Path | None:
    """Return the folder of that name; imported folders are allowed anywhere. Raises RequestError as
    `paths.find_folder`."""
    path = paths.resolve(source)
    with workspace.store.read() as session:
        remembered = path is not None and imported.find(session, str(path)) is not None
    return path if remembered and path is not None and path.is_dir() else paths.find_folder(source)


def _is_made_here(workspace: Workspace, folder: Path) -> bool:
    """Tell whether an import of this home made the folder."""
    return folder.resolve().is_relative_to(workspace.settings.models.resolve())


def _stored_licence(row: ModelRow) -> str | None:
    """Return the licence recorded at import, which the folder cannot change; None if there is none or the row is
    damaged."""
    with suppress(ValidationError):
        return ModelCard.model_validate_json(row.card).licence
    return None


def _demonstration_card(workspace: Workspace, source: str) -> ModelCard | None:
    """In a demonstration, where no weights are: the card of a model that something was made from, by its name or
    folder."""
    cards = _artifact_parents(workspace, MAX_SHOWN) if workspace.read_only else []
    return next((card for card in cards if source in {card.id, card.path}), None)


def _demonstrated(workspace: Workspace, limit: int) -> list[KnownModel]:
    """Return the imported models that artifacts were made from."""
    cards = [card for card in _artifact_parents(workspace, limit) if card.origin != "starter"]
    return [KnownModel(card=card, present=is_present(card)) for card in cards]


def _artifact_parents(workspace: Workspace, limit: int) -> list[ModelCard]:
    """Return the models that artifacts were made from, latest first."""
    with workspace.store.read() as session:
        rows = history.latest_artifacts_by_model(session, limit=limit)
        return readable_rows(rows, lambda row: read_manifest(row.manifest).parent)


def check_name(workspace: Workspace, name: str, folder: str | None = None) -> str:
    """A name that a person chose, good for a new model or for the one in `folder`. Raises RequestError."""
    if not NAME.fullmatch(name) or name.startswith("a-"):
        raise RequestError(
            f"is wrong: `{name[:MAX_SHOWN]}` is no name of a model: give up to 100 letters, digits and . _ - / @, a "
            "letter or digit first, and not a-, as artifacts have it.",
            field="name",
        )
    with workspace.store.read() as session:
        same_name = imported.find_by_name(session, name)
    if models.card(name) is not None or (same_name is not None and same_name.path != folder):
        raise RequestError(f"is taken: another model is called `{name}`: choose another.", field="name")
    return name


def own_name(folder: Path) -> str:
    """Return the card's name; a generic folder name such as "model" gets the parent folder's name in front."""
    if (named := path_name(folder)) != folder.name:
        return named
    parent = folder.parent.name
    return f"{parent}-{folder.name}" if folder.name.lower() in GENERIC and parent else folder.name


class KnownModel(Frozen):
    """A model, whether its folder is still there, and who imported it, if anybody did."""

    card: ModelCard
    present: bool
    owner: str = ""

    @property
    def source(self) -> str:
        """The text that `resolve` accepts for it: the id of a bundled model, else its folder."""
        return self.card.id if self.card.origin == "starter" else self.card.path


def list_known(workspace: Workspace, *, limit: int = 100) -> list[KnownModel]:
    """Bundled models, then the folders that were imported, then those that artifacts were made from, each latest
    first."""
    with workspace.store.read() as session:
        remembered = imported.list_cards(session, limit=limit)
    paths = {card.path for card in remembered}
    used = [card for card in _artifact_parents(workspace, limit) if card.origin != "starter" and card.path not in paths]
    cards = [KnownModel(card=card, present=True) for card in models.cards()]
    return cards + [KnownModel(card=card, present=is_present(card)) for card in [*remembered, *used]]


def is_present(card: ModelCard) -> bool:
    return (Path(card.path) / "config.json").is_file()


def find_licence(card: ModelCard) -> str | None:
    """Return the licence that the model's folder states, and where; None if it states none."""
    return licences.licence(Path(card.path))


def remember(workspace: Workspace, source: str, *, name: str | None = None) -> KnownModel:
    """Import a folder: the catalog lists it from now on, by a name of its own. Nothing is copied; again is the same row
    with the card read anew.

    Raises UnknownModel, InvalidModel, RequestError where the name is taken. A bundled model is there already and stays
    as it is.
    """
    # 1. Resolve the folder; a bundled model is there already.
    workspace.check(Action.REMEMBER_MODEL)
    card = resolve(workspace, source)
    if card.origin == "starter":
        return KnownModel(card=card, present=True)
    # 2. Choose its name.
    if name is not None:
        check_name(workspace, name, card.path)
    card = preflight.with_notes(workspace.settings.cache, card)
    chosen_name = name or (
        card.id if card.origin == "imported" or is_remembered(workspace, card) else own_name(Path(card.path))
    )
    # 3. Store it.
    row = ModelRow(
        path=card.path,
        name=chosen_name,
        owner=workspace.actor.name,
        licence=find_licence(card),
        card=card.model_dump_json(),
    )

    def put(session: Any) -> ModelRow:
        workspace.allow(session, Action.REPLACE_MODEL, card.path)
        return imported.remember(session, row)

    stored = workspace.change(Action.REMEMBER_MODEL, card.path, put, detail=chosen_name)
    return KnownModel(card=ModelCard.model_validate_json(stored.card), present=True)


def forget(workspace: Workspace, source: str) -> None:
    """Take an imported folder out of the catalog; the folder and what was made from it stay. Raises NotFound."""
    path = str(paths.resolve(source) or source)
    workspace.change(Action.FORGET_MODEL, path, lambda session: imported.forget(session, path))


def is_remembered(workspace: Workspace, card: ModelCard) -> bool:
    with workspace.store.read() as session:
        return imported.find(session, card.path) is not None


def list_remembered(workspace: Workspace, *, limit: int = 100) -> list[KnownModel]:
    """Return the imported models, latest first; in a demonstration, those that it shows results of."""
    with workspace.store.read() as session:
        known = readable_rows(imported.list_rows(session, limit=limit), _known)
    return known or (_demonstrated(workspace, limit) if workspace.read_only else [])


def _known(row: ModelRow) -> KnownModel:
    card = read_stored(ModelCard, row.card, "the model")
    return KnownModel(card=card, present=is_present(card), owner=row.owner)


def resolve_facts(workspace: Workspace, source: str) -> ModelFacts:
    """Like `resolve`, and also the models that are known by published facts alone, by JumpStart id or hub id.

    Raises UnknownModel with names like it, InvalidModel; InvalidCatalog where the catalog's files are wrong.
    """
    if models.card(source) is None and _folder(workspace, source) is None:
        published_model = catalog_sync.find(workspace, source)
        if published_model is not None:
            return published_model
    try:
        return resolve(workspace, source)
    except UnknownModel as error:
        near = [] if looks_like_path(source) else find_similar(source, catalog_sync.names(workspace))
        if not near:
            raise
        raise UnknownModel(f"{error} The nearest published ones are {', '.join(near)}.") from None


def find_draft(workspace: Workspace, model: ModelFacts, recipe: Recipe) -> ModelFacts | None:
    """The draft or head that the recipe means; None where it has none, or the model brings none."""
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or not step.drafts:
        return None
    _check_trained_for(workspace, model, step.draft)
    if SPECULATE[step.method].needs == "head":
        return read_head(workspace, step.draft) if step.draft and step.draft != "auto" else None
    return resolve_draft(workspace, model, step.draft)


def read_head(workspace: Workspace, source: str) -> ModelCard:
    """The card of a head by its folder or the id of the artifact that it is. Raises UnknownModel, InvalidModel."""
    artifact_folder = _artifact_weights(workspace, source)
    folder = artifact_folder or _folder(workspace, source)
    if folder is None:
        raise UnknownModel(f"There is no folder {source}: give the folder of a head, with config.json and safetensors.")
    return heads.read_head(folder, id=source if artifact_folder else None)


def _artifact_weights(workspace: Workspace, source: str) -> Path | None:
    """Return the folder of an artifact's weights, or of a trained draft's; None if the source is not an artifact.

    Raises NotFound, ImpossibleStack for one that speculates itself.
    """
    if not is_artifact(source):
        return None
    shown = artifacts.show(workspace, source)
    parts = {file.path.partition("/")[0] for file in shown.manifest.files}
    if {"model", "draft"} <= parts:
        raise ImpossibleStack(f"{source} speculates itself, so it cannot draft for another: name its draft alone.")
    folder = Path(shown.path)
    return (folder if folder.is_dir() else artifacts.fetch(workspace, source)) / (
        "model" if "model" in parts else "draft"
    )


def is_artifact(source: str) -> bool:
    """Tell whether the source is written as an artifact id."""
    return source.startswith("a-") and paths.find_folder(source) is None


def _check_trained_for(workspace: Workspace, model: ModelFacts, source: str | None) -> None:
    """Raises ImpossibleStack for a draft that was trained for another model."""
    if source is None or not is_artifact(source) or not isinstance(model, ModelCard):
        return
    manifest = artifacts.show(workspace, source).manifest
    if manifest.is_draft and manifest.parent.revision != model.revision:
        raise ImpossibleStack(
            f"{source} was trained for {manifest.parent.id}, not for {model.id}: train one with `whetstone train "
            f"{model.id}`."
        )


def resolve_draft(workspace: Workspace, model: ModelFacts, draft: str | None) -> ModelFacts | None:
    """The draft a `speculate` step means: `auto` or nothing is the provided one, else a model, a folder or an artifact.
    Model and draft may be known by published facts alone."""
    if draft is None or draft == "auto":
        if not isinstance(model, ModelCard):
            return catalog_sync.find_draft(workspace, model)
        return resolve(workspace, model.draft) if model.draft else None
    if not isinstance(model, ModelCard) or catalog_sync.find(workspace, draft) is not None:
        return resolve_facts(workspace, draft)
    artifact_folder = _artifact_weights(workspace, draft)
    return read_card(artifact_folder, id=draft, origin="artifact") if artifact_folder else resolve(workspace, draft)
