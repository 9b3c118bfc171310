"""Workloads: bundled by name, or a JSONL file."""

from __future__ import annotations

from pathlib import Path

from backend.domain import workload
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import Workload
from backend.settings import ASSETS

MAX_BYTES = 200_000_000
_FOLDER = ASSETS / "workloads"


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.jsonl"))


def path(source: str) -> Path:
    """The file a name or path means. Raises InvalidWorkload."""
    for candidate in (_FOLDER / f"{source}.jsonl", Path(source).expanduser().resolve()):
        if candidate.is_file():
            return candidate
    raise InvalidWorkload(f"There is no workload `{source}`: give a JSONL file, or one of {', '.join(names())}.")


def read(source: str) -> Workload:
    """Raises InvalidWorkload with the first thing that is wrong."""
    file = path(source)
    if file.stat().st_size > MAX_BYTES:
        raise InvalidWorkload(f"{file.name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
    return workload.parse(file.stem, file.read_bytes())
