"""How many tokens texts have, by a model folder's own tokenizer.json: the `tokenizers` library reads it, no code of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TOKENIZER = "tokenizer.json"


def lengths(folder: Path, texts: Sequence[str]) -> list[int] | None:
    """Tokens of each text, with those a server adds at the start; None where the folder has no tokenizer.json it can read."""
    found = encoded(folder, texts)
    return None if found is None else [len(ids) for ids in found]


def encoded(folder: Path, texts: Sequence[str]) -> list[list[int]] | None:
    """The numbers of those tokens."""
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
        return [list(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
    except Exception:  # noqa: BLE001  the library raises nothing narrower
        return None
