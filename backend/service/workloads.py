"""Workloads: bundled by name, uploaded into the home, or a JSONL file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from backend.domain import workload
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import Workload
from backend.service.workspace import Workspace
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


def saved(workspace: Workspace) -> dict[str, Path]:
    """What was uploaded into this home: name -> file."""
    return {file.stem: file for file in sorted((workspace.settings.home / "workloads").glob("*.jsonl"))}


def save(workspace: Workspace, name: str, content: bytes) -> str:
    """Keep an uploaded workload in the home under its name and the start of its hash; the name it can be asked for by.

    The same content twice is one file. Raises InvalidWorkload with the first thing that is wrong; then nothing is kept.
    Raises ReadOnly in a demonstration.
    """
    workspace.check_writable()
    if len(content) > MAX_BYTES:
        raise InvalidWorkload(f"{name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
    workload.parse(Path(name).stem, content)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).stem).strip("-")[:60] or "workload"
    kept = f"{plain}-{hashlib.sha256(content).hexdigest()[:8]}"
    folder = workspace.settings.home / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{kept}.part"
    aside.write_bytes(content)
    aside.replace(folder / f"{kept}.jsonl")
    return kept
