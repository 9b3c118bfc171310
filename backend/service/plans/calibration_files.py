"""Calibration texts uploaded in the browser: checked, and kept in the home under their name and the start of their hash."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from backend import files
from backend.catalog.text import calibration_text
from backend.domain.errors import InvalidWorkload, WhetstoneError
from backend.service.workspace import Workspace

MAX_MB = calibration_text.MAX_BYTES // 1_000_000
TYPES = ("jsonl", "parquet", "txt")


def save(workspace: Workspace, name: str, content: bytes) -> Path:
    """The file in the home, as `calibration` of a recipe names it. The same content twice is one file.

    Raises InvalidWorkload with the first thing that is wrong, and then nothing is kept; ReadOnly in a demonstration.
    """
    workspace.check_writable()
    if len(content) > calibration_text.MAX_BYTES:
        raise InvalidWorkload(f"{name} has more than {calibration_text.MAX_BYTES // 1_000_000} MB: take a sample of it.")
    suffix = Path(name).suffix.lower()
    if suffix.removeprefix(".") not in TYPES:
        raise InvalidWorkload(f"{name} is of no kind that can be read: give a file that ends in .{', .'.join(TYPES)}.")
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).stem).strip("-")[:60] or "text"
    folder = workspace.settings.home / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plain}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    with files.staged_file(path) as staged:
        staged.write_bytes(content)
        try:
            calibration_text.check_unseen(name, calibration_text.texts(str(staged)))
        except WhetstoneError as error:
            raise InvalidWorkload(str(error).replace(staged.name, name)) from None
    return path
