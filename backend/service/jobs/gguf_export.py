"""Exports an artifact as one GGUF file: the file that it has, or one that is written of its quantized weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from backend import files
from backend.artifacts import locations
from backend.domain.errors import ImpossibleStack, RequestError
from backend.domain.frozen import Frozen
from backend.domain.jobs import gguf_export
from backend.service.jobs import artifacts
from backend.service.workspace import Workspace

PROGRAM = "backend.engines.gguf.export"


class ExportedFile(Frozen):
    """`types` counts the matrices by their type. `difference` is the largest of a weight from ours as a share of what
    the rounding of scales allows; None of a file that is copied as it is."""

    path: str
    bytes: int
    types: dict[str, int]
    difference: float | None


def export(workspace: Workspace, artifact_id: str, out: Path) -> ExportedFile:
    """Write the artifact's GGUF file to `out`, a folder or the path of a new file.

    Raises NotFound, ArtifactCorrupt, ReadOnly, RequestError for a file that exists, ImpossibleStack with what works
    instead.
    """
    # 1. Refuse what cannot be written before any work.
    manifest = artifacts.show(workspace, artifact_id).manifest
    if (refusal := gguf_export.find_refusal(manifest)) is not None:
        raise ImpossibleStack(f"{artifact_id} cannot be exported as GGUF. {refusal}.")
    path = (out / gguf_export.file_name(manifest) if out.is_dir() else out).absolute()
    if path.exists():
        raise RequestError(f"{path} exists already: remove it, or give another path.")
    if not path.parent.is_dir():
        raise RequestError(f"There is no folder {path.parent}: make it, or give another path.")

    # 2. Copy the file that is there, or write it in a child process.
    shown = artifacts.show_with_files(workspace, artifact_id)
    with locations.location_of(workspace.settings, shown.path).use(shown.path, artifact_id) as folder:
        if manifest.gguf is not None:
            files.copy(folder / manifest.gguf["file"], path)
            types, difference = dict(manifest.gguf["types"]), None
        else:
            answer = _write(folder / "model", manifest.parent.id, path)
            types, difference = answer["types"], answer["difference"]
    return ExportedFile(path=str(path), bytes=path.stat().st_size, types=types, difference=difference)


def read(workspace: Workspace, artifact_id: str) -> bytes:
    """Return the content of the artifact's GGUF file, for a browser. Raises as `export`."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(export(workspace, artifact_id, Path(folder)).path).read_bytes()


def _write(folder: Path, name: str, path: Path) -> dict[str, Any]:
    """Run the program that writes and compares. Raises ImpossibleStack with its reason."""
    request = json.dumps({"folder": str(folder), "name": name, "out": str(path)})
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", PROGRAM]
    done = subprocess.run(command, input=request.encode(), env=environment, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.decode().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines and done.returncode == 0 else {}
    if "types" not in answer:
        reason = answer.get("refused") or f"the program that writes it ended with code {done.returncode}"
        raise ImpossibleStack(f"{name} cannot be exported as GGUF: {reason.rstrip('.')}.")
    return answer
