"""Counts the tokens of texts with a model folder's own tokenizer.json: the `tokenizers` library reads it, no code of it
runs.

A small file can make the library take all memory (a normalizer that expands), or abort: it is read in a limited child.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend import sandbox

TOKENIZER = "tokenizer.json"
CHARACTERS_A_SECOND = 200_000
"""Speed of encoding on a slow processor."""


def lengths(folder: Path, texts: Sequence[str]) -> list[int] | None:
    """Tokens of each text, with those a server adds at the start; None where the folder has no tokenizer.json it can
    read.

    Raises TooDemanding where reading it takes more than a file may.
    """
    lengths = counted(folder, texts)
    return None if lengths is None else [length for length, _ in lengths]


def counted(folder: Path, texts: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return for each text its number of tokens and the largest token id, -1 if it has none. Raises as `lengths`."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    if sandbox.is_ours(path.resolve()):
        return count(str(path), list(texts))
    seconds = sandbox.CPU_S + sum(map(len, texts)) / CHARACTERS_A_SECOND
    return sandbox.run(count, str(path), list(texts), about=f"{TOKENIZER} of {folder.name}", cpu_s=seconds)


def count(path: str, texts: list[str]) -> list[tuple[int, int]] | None:
    """Return for each text its number of tokens and the largest token id; None if the library cannot read the file."""
    try:
        tokenizer = _tokenizer(path, Path(path).stat().st_mtime_ns)
        return [(len(encoding.ids), max(encoding.ids, default=-1)) for encoding in tokenizer.encode_batch(texts)]
    except Exception:  # noqa: BLE001  the library raises nothing narrower
        return None


@lru_cache(maxsize=1)
def _tokenizer(path: str, _changed: int) -> Any:
    """Read once for texts that are counted in parts: a large file takes a second."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)
