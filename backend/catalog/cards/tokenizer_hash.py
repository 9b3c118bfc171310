"""Hashes a model folder's vocabulary, so that two models that can share a draft compare equal. Runs no tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from backend import sandbox
from backend.domain.errors import InvalidModel

OTHER_FILES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
"""Vocabularies of tokenizers without a tokenizer.json."""
HERE_BYTES, MOST_BYTES = 4_000_000, 128_000_000
"""Sizes of a tokenizer.json up to which it is read in this process, and read at all."""
SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Other files of a tokenizer; the limit for JSON applies to them."""
FILES = ("tokenizer.json", *OTHER_FILES)


def tokenizer_hash(folder: Path) -> str:
    """sha256 over the sorted (token, id) pairs of tokenizer.json, added tokens included; else over the other files'
    bytes.

    Raises InvalidModel when there is no tokenizer, or tokenizer.json is damaged.
    """
    path = folder / "tokenizer.json"
    try:
        _check_settings(folder)
        if path.is_file():
            small = sandbox.is_ours(path) or path.stat().st_size <= HERE_BYTES
            return (
                of_file(str(path)) if small else sandbox.run(of_file, str(path), about=f"{path.name} of {folder.name}")
            )
        return _hash_files([folder / name for name in OTHER_FILES if (folder / name).is_file()], folder)
    except OSError as error:
        raise InvalidModel(
            f"The tokenizer of {folder} cannot be read ({error.strerror}): check its permissions."
        ) from None


def _check_settings(folder: Path) -> None:
    """Raise InvalidModel before anything reads a file that no tokenizer has, which would take gigabytes."""
    for file in (folder / name for name in SETTINGS):
        if file.is_file() and file.stat().st_size > sandbox.JSON_BYTES:
            most = sandbox.JSON_BYTES // 1_000_000
            raise InvalidModel(
                f"{file.name} has more than {most} MB, which none has: download or export the model again."
            )


def of_file(path: str) -> str:
    """Hash the vocabulary in a file. Raises InvalidModel if it is damaged."""
    try:
        pairs = _pairs(sandbox.read_json(Path(path).read_bytes(), MOST_BYTES))
        return hashlib.sha256(json.dumps(sorted(pairs)).encode()).hexdigest()
    except ValueError:
        raise InvalidModel("tokenizer.json is damaged: download or export the model again.") from None


def _pairs(document: Any) -> set[tuple[str, int]]:
    """(token, id) pairs of a `tokenizers` file: the vocabulary is a mapping, or a list of [token, score] for
    Unigram."""
    # Bring the vocabulary of Unigram into the form of the others.
    model = document.get("model") if isinstance(document, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list) and all(isinstance(row, list) and row for row in vocabulary):
        vocabulary = {row[0]: number for number, row in enumerate(vocabulary) if isinstance(row[0], str)}
    added = document.get("added_tokens") or [] if isinstance(document, dict) else []
    if (
        not isinstance(vocabulary, dict)
        or not isinstance(added, list)
        or not all(isinstance(row, dict) for row in added)
    ):
        raise ValueError("no vocabulary")
    # Added tokens count as well.
    listed = [*vocabulary.items(), *((row.get("content"), row.get("id")) for row in added)]
    if not listed or not all(isinstance(token, str) and type(number) is int for token, number in listed):
        raise ValueError("not token -> id")
    return set(listed)


def _hash_files(paths: list[Path], folder: Path) -> str:
    if not paths:
        raise InvalidModel(f"{folder} has no tokenizer: put its tokenizer.json beside config.json.")
    digest = hashlib.sha256()
    for path in paths:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidModel(f"{path.name} has more than {MOST_BYTES // 1_000_000} MB, which no vocabulary has.")
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()
