"""The starter models' text: the Python standard library's own sources (PSF licence), split by file.

Its one job is to turn the interpreter's `Lib/` into training and held-out text. A file belongs to the held-out set when
the first byte of the SHA-256 of its relative path is below 13 (about 5 %), so the split never depends on order or
chance.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

EXCLUDED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
HELD_OUT_BELOW = 13


def source_files() -> list[Path]:
    """Every library module outside the test suites, sorted by path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if not EXCLUDED & set(path.relative_to(root).parts))
    return sorted(path for path in found if _decodes(path))


def _decodes(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def is_held_out(path: Path) -> bool:
    root = Path(sysconfig.get_paths()["stdlib"])
    digest = hashlib.sha256(path.relative_to(root).as_posix().encode()).digest()
    return digest[0] < HELD_OUT_BELOW


def texts(*, held_out: bool) -> list[str]:
    """The documents of one side of the split; generated tables (few distinct words a line) are left out."""
    chosen = [path for path in source_files() if is_held_out(path) is held_out]
    return [text for text in (path.read_text(encoding="utf-8") for path in chosen) if not _is_table(text)]


def _is_table(text: str) -> bool:
    """Encodings and unicode tables teach a model nothing but escapes."""
    escapes = text.count("\\x") + text.count("\\u") + text.count("0x")
    return escapes * 20 > len(text)
