"""The parts of a GGUF file that was split: NAME-00001-of-00003.gguf and so on, found from any of them.

Source: `llama_split_path` and `llama_model_loader` of llama.cpp: `split.no` counts from 0, `split.count` and
`split.tensors.count` are the same in every part, and only the first part has the keys of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from backend.domain.errors import InvalidModel

NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
MOST_PARTS = 1000


def paths(path: Path) -> list[Path]:
    """All parts of the model that `path` belongs to, in order; the path alone where its name states no parts.

    Raises InvalidModel for a part that is not there.
    """
    match = NUMBERED.search(path.name)
    if match is None:
        return [path]
    number, count = int(match[1]), int(match[2])
    if not 0 < number <= count <= MOST_PARTS:
        raise InvalidModel(
            f"{path.name} is numbered beyond its own count of parts: give it the name that it was published with."
        )
    # The names of the other parts follow from this one's.
    parts = [path.with_name(NUMBERED.sub(f"-{one:05}-of-{count:05}", path.name)) for one in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        others = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise InvalidModel(f"{path.name} is one of {count} parts: {missing[0]}{others} missing, put them beside it.")
    return parts


def first_name(name: str) -> str:
    """The name of the first part of the model that the file `name` belongs to."""
    return NUMBERED.sub(lambda match: f"-00001-of-{match[2]}", name)


def without_number(stem: str) -> str:
    """`Tiny.Q4_1-00001-of-00002` -> `Tiny.Q4_1`."""
    return NUMBERED.sub("", f"{stem}.gguf").removesuffix(".gguf")


def models(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of GGUF files by the first part of the model that they belong to."""
    grouped: dict[str, list[str]] = {}
    for name in sorted(names):
        grouped.setdefault(first_name(name), []).append(name)
    return grouped
