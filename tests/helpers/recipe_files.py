"""Recipe files."""

from __future__ import annotations

from pathlib import Path


def recipe(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)
