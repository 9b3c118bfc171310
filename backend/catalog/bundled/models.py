"""The models that come with Whetstone: the starter target and its draft, trained by assets/starter/training."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from backend.catalog.cards.card import read_card
from backend.domain.model.facts import ModelCard
from backend.settings import ASSETS

STARTER = "starter"
STARTER_DRAFT = "starter-draft"

_FOLDERS = {STARTER: ASSETS / "starter" / "target", STARTER_DRAFT: ASSETS / "starter" / "draft"}
_DRAFTS = {STARTER: STARTER_DRAFT}


def ids() -> list[str]:
    return list(_FOLDERS)


def cards() -> list[ModelCard]:
    return [_read(model_id) for model_id in _FOLDERS]


def card(model_id: str) -> ModelCard | None:
    """The card of a bundled model, by id in any case; None where there is none of that name."""
    return _read(model_id.lower()) if model_id.lower() in _FOLDERS else None


@cache
def _read(model_id: str) -> ModelCard:
    """Read the card once in each process: the files belong to the checkout, and hashing a tokenizer for every row of a
    list would be felt."""
    model_card = read_card(_FOLDERS[model_id], id=model_id, origin="starter")
    return model_card.model_copy(update={"draft": _DRAFTS.get(model_card.id)})


def folder_card(source: str, *, as_imported: bool = False) -> ModelCard:
    """The card of a local folder, as `read_card` reads it. Raises UnknownModel, InvalidModel."""
    path = Path(source).expanduser().resolve()
    try:
        now = stamp(path)
    except OSError:  # no folder, or one that may not be listed: the reader's own sentence says which
        return read_card(path)
    return _folder(path, now, as_imported)


Stamp = frozenset[tuple[str, int, int, int]]


def stamp(folder: Path) -> Stamp:
    """Name, inode, size and time of every entry: another file, or one written anew, is another stamp."""
    entries = ((entry, entry.stat()) for entry in folder.iterdir())
    return frozenset((entry.name, status.st_ino, status.st_size, status.st_mtime_ns) for entry, status in entries)


@lru_cache(maxsize=64)
def _folder(path: Path, _stamp: Stamp, as_imported: bool) -> ModelCard:
    """Read the card again only after its files changed: hashing a vocabulary of 128k tokens takes more than a
    second."""
    return read_card(path, as_imported=as_imported)
