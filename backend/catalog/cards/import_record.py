"""The record that an imported model's folder carries: where it came from, at which revision, under which licence.

It is written last, before the folder becomes visible. Whoever hands a folder on can write one too, so its name, source
and licence count only in a folder that Whetstone made (`read_card`).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from backend import files, sandbox
from backend.domain.frozen import Frozen
from backend.domain.model.facts import QuantizedBefore

FILE = "whetstone-import.json"
SHOWN = 8
"""Characters of a revision in a card's id."""


class ImportRecord(Frozen):
    """`source` is a hub id or an s3:// prefix; `files` are sizes in bytes; `accepted` is when the licence was, if it
    was."""

    source: str
    revision: str
    endpoint: str | None = None
    licence: str | None = None
    accepted: datetime | None = None
    name: str | None = None
    """Name that the person chose; None: named by its source."""
    quantized_before: QuantizedBefore | None = None
    files: dict[str, int]

    @property
    def card_id(self) -> str:
        return self.name or card_id(self.source, self.revision)


def card_id(source: str, revision: str) -> str:
    """`org/name@1a2b3c4d`."""
    return f"{source}@{revision[:SHOWN]}"


def read(folder: Path) -> ImportRecord | None:
    """Read the record; None if the folder was not imported or the record is damaged, since the model is still
    usable."""
    try:
        return ImportRecord.model_validate_json(sandbox.read_file(folder / FILE))
    except (OSError, ValueError):  # pydantic's ValidationError is one
        return None


def write(folder: Path, written: ImportRecord) -> None:
    files.write(folder / FILE, written.model_dump_json(indent=1) + "\n")
