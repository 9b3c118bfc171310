"""Finds the licence of a model folder: the front matter of its README.md, else the first words of a licence file.

Nothing is guessed: where the folder says nothing, neither does this.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from backend import sandbox

MOST_BYTES = 64_000
LONGEST = 120
FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "LICENCE.txt", "LICENCE.md")


def licence(folder: Path) -> str | None:
    """`apache-2.0 (README.md)`, or None where the folder does not say."""
    for name, text in (
        ("README.md", _front_matter(folder / "README.md")),
        *((name, _title(folder / name)) for name in FILES),
    ):
        if text:
            return f"{text[:LONGEST]} ({name})"
    return None


def _start(path: Path) -> str:
    try:
        with path.open("rb") as source:
            return source.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _front_matter(path: Path) -> str | None:
    """`license_name` where `license` is `other`, as the hub's model cards have it."""
    # Take the text between the two marks.
    before, _, rest = _start(path).partition("---\n")
    head, end, _ = rest.partition("\n---")
    if before.strip() or not end:
        return None
    try:
        document = sandbox.read_yaml(head)
    except (yaml.YAMLError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    # A name counts only where the licence is none of the hub's list.
    stated = document.get("license")
    named = document.get("license_name")
    licence = named if (stated is None or stated == "other") and isinstance(named, str) else stated
    return licence.strip() if isinstance(licence, str) and licence.strip() else None


def _title(path: Path) -> str | None:
    """The first line that says something."""
    return next(
        (" ".join(line.strip(" #\t").split()) for line in _start(path).splitlines() if line.strip(" #\t")), None
    )
