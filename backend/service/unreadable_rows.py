"""Rows of the store whose document cannot be read. Lists leave them out; here they are named. Damaged rows can be
removed, rows of a newer version of Whetstone never are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from backend.domain.errors import NotNow, Unreadable, WrittenByNewer
from backend.domain.evaluation.document import read_evaluation
from backend.domain.jobs.artifact import read_manifest
from backend.domain.model.facts import ModelCard
from backend.domain.planner.presets import Preset
from backend.domain.roles import Action
from backend.domain.validation import read_stored
from backend.service.workspace import Workspace
from backend.store import table_rows
from backend.store.tables import ArtifactRow, EvaluationRow, ModelRow, PresetRow

DocumentKind = Literal["preset", "artifact", "evaluation", "model"]


_KINDS: dict[DocumentKind, tuple[type[Any], str, Callable[[str], object]]] = {
    "preset": (PresetRow, "document", partial(read_stored, Preset, whole="the preset")),
    "artifact": (ArtifactRow, "manifest", read_manifest),
    "evaluation": (EvaluationRow, "document", read_evaluation),
    "model": (ModelRow, "card", partial(read_stored, ModelCard, whole="the model")),
}
"""For each kind: its table, the column of the document, and the function that reads it."""


class UnreadableRow(NamedTuple):
    """`id` is the row's key, for a model its folder; `why` is a sentence. `newer`: a newer version of Whetstone wrote
    it."""

    kind: DocumentKind
    id: str
    why: str
    newer: bool = False


def find_all(
    workspace: Workspace, kinds: Sequence[DocumentKind] = tuple(_KINDS), among: Sequence[str] | None = None
) -> list[UnreadableRow]:
    """Return the unreadable rows of these kinds, or only those among these keys, since a page checks the part it
    shows."""
    return [row for kind in kinds for row in _find(workspace, kind, among)]


def _find(workspace: Workspace, kind: DocumentKind, among: Sequence[str] | None) -> list[UnreadableRow]:
    table, column, _ = _KINDS[kind]
    with workspace.store.read() as session:
        documents = table_rows.list_documents(session, table, column, among)
    flaws = [(key, _find_flaw(kind, document)) for key, document in documents]
    return [UnreadableRow(kind, key, flaw.why, flaw.newer) for key, flaw in flaws if flaw is not None]


class _Flaw(NamedTuple):
    """A document that cannot be read: the reason, in a sentence."""

    why: str
    newer: bool


_FLAWS: dict[tuple[DocumentKind, bytes], _Flaw | None] = {}
"""Results of reading, by the document's digest: a page that lists a thousand documents reads each once."""
MOST_FLAWS = 50_000


def _find_flaw(kind: DocumentKind, document: str) -> _Flaw | None:
    """Return why the document cannot be read; None where it can."""
    # 1. What an earlier reading showed.
    key = kind, hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if key in _FLAWS:
        return _FLAWS[key]
    # 2. Read it.
    flaw = None
    try:
        _KINDS[kind][2](document)
    except Unreadable as error:
        flaw = _Flaw(str(error), isinstance(error, WrittenByNewer))
    if len(_FLAWS) >= MOST_FLAWS:
        _FLAWS.clear()
    _FLAWS[key] = flaw
    return flaw


def remove(workspace: Workspace, damaged: UnreadableRow) -> None:
    """Take the row out of the store; files stay where they are.

    Raises ReadOnly in a demonstration, NotNow of what a newer version wrote."""
    if damaged.newer:
        raise NotNow(f"{damaged.id} is not damaged: {damaged.why}")
    (table, _, _), key = _KINDS[damaged.kind], damaged.id
    workspace.change(
        Action.REMOVE_DAMAGED, key, lambda session: table_rows.remove(session, table, key), detail=damaged.kind
    )
