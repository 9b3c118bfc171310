"""The pictures of README and docs: the pages that they show, and the words that were in them when they were taken.

All but one show the recorded win that `whetstone up --demo` shows. A demonstration cannot build, so that page is
photographed in a studio of its own.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Any, NamedTuple

from backend.service.studio import demo_export
from backend.settings import CHECKOUT

FOLDER = CHECKOUT / "docs" / "screenshots"
MANIFEST = FOLDER / "made.json"
"""Version, and for each picture its digest and words; written with the pictures."""
RENEW = "renew the pictures: pytest --photograph tests/browser/test_pictures.py, then look at them"
EVALUATION = str(json.loads((demo_export.FOLDER / "evaluations.json").read_text())[0]["id"])


class Picture(NamedTuple):
    """A page with its query; `height` of the window in pixels."""

    page: str
    query: dict[str, str]
    recorded: bool = True
    height: int = 800


PICTURES = {
    "home": Picture("home", {}),
    "build": Picture("build", {"model": "starter", "recipe": "w8a8-draft"}, recorded=False),
    "evaluation": Picture("evaluate", {"id": EVALUATION}, height=1300),
    "compare": Picture("compare", {"ids": EVALUATION}, height=900),
}
REPORT = "report"
"""The picture of the offline report, which is no page of the studio."""


def version() -> str:
    """The version of Whetstone in this checkout."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


def read_manifest() -> dict[str, Any]:
    """What was written with the pictures."""
    return dict(json.loads(MANIFEST.read_text()))


def write_manifest(words: dict[str, list[str]]) -> None:
    """Record the pictures that are in the folder now, with the words of each."""
    pictures = {
        name: {"sha256": hashlib.sha256((FOLDER / f"{name}.png").read_bytes()).hexdigest(), "words": words[name]}
        for name in sorted(words)
    }
    document = {"version": version(), "pictures": pictures}
    MANIFEST.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
