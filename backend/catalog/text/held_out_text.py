"""Held-out text that quality is measured on, bundled ones by name or a user's file; and what calibrates, apart from it.

Chat is scored in the model's own template, so a document may be a prompt with its answer. What is bundled is apart from
what calibrates (assets/text/README.md).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from backend import sandbox
from backend.catalog.text import calibration_text
from backend.domain.errors import InvalidWorkload
from backend.settings import ASSETS

FOLDER = ASSETS / "text"
BUNDLED = {
    "code": ("held_out.txt",),
    "prose": ("prose_held_out.txt",),
    "chat": ("chat_held_out.jsonl",),
    "chat and prose": ("chat_held_out.jsonl", "prose_held_out.txt"),
}
"""Files of each bundled text."""


CHAT_CALIBRATION = FOLDER / "chat_calibration.jsonl"
CODE_CHARACTERS = 100_000
"""Characters of the calibration text added to the chat: with the 9,400 tokens of that a little more than 64 sequences
of 512 tokens."""


class Answered(NamedTuple):
    """A prompt and its answer, to be written in a model's chat template."""

    prompt: str
    answer: str


Document = str | Answered


class HeldOut(NamedTuple):
    """`sha256` is of the files, so that two figures can be told to be of the same text."""

    name: str
    sha256: str
    documents: tuple[Document, ...]


def default(model_dir: Path) -> str:
    """Chat and prose for a model with a chat template; else code, which the starter models were made for."""
    return "chat and prose" if has_template(model_dir) else "code"


def has_template(model_dir: Path) -> bool:
    """Return whether the tokenizer's files have a chat template."""
    if any((model_dir / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        settings = sandbox.read_json_file(model_dir / "tokenizer_config.json")
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def read(named: str | None, model_dir: Path) -> HeldOut:
    """The bundled text of that name, or a text, JSONL or Parquet file; None is the model's `default`.

    Raises InvalidWorkload where it is missing, empty or does not decode.
    """
    name = named or default(model_dir)
    paths = [FOLDER / file for file in BUNDLED[name]] if name in BUNDLED else [Path(name)]
    texts = tuple(document for path in paths for document in documents(path))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
    return HeldOut(name if name in BUNDLED else Path(name).name, digest, texts)


def calibration(path: str | None, model_dir: Path) -> list[Document]:
    """Return the calibration text: the documents of a file; None is the bundled text, for a model with a chat template
    chat beside code."""
    if path is not None:
        return documents(Path(path))
    code = calibration_text.texts(None)
    return (
        [*documents(CHAT_CALIBRATION), *(text[:CODE_CHARACTERS] for text in code)]
        if has_template(model_dir)
        else [*code]
    )


def check(named: str | None) -> None:
    """Raise InvalidWorkload for a file that will not do; a name says nothing of a model yet."""
    if named is not None and named not in BUNDLED:
        documents(Path(named))


def documents(path: Path) -> list[Document]:
    """Read the documents of a file like calibration text; a JSONL line may hold "prompt" and "answer". Raises
    InvalidWorkload."""
    texts = calibration_text.texts(str(path))
    if path.suffix.lower() not in {".jsonl", ".ndjson"}:
        return [*texts]
    return [
        _document(path, number, line)
        for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), 1)
        if line.strip()
    ]


def _document(path: Path, number: int, line: str) -> Document:
    row = json.loads(line)
    prompt, answer = row.get("prompt"), row.get("answer")
    if isinstance(prompt, str) and isinstance(answer, str):
        return Answered(prompt, answer)
    text = next((row[name] for name in calibration_text.FIELDS if isinstance(row.get(name), str)), "")
    if not text.strip():
        raise InvalidWorkload(f"Line {number} of {path.name} is empty: take it out.")
    return str(text)
