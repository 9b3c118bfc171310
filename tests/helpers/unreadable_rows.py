"""Rows of the store that this version cannot read, and the command line on them."""

from __future__ import annotations

import sys

import pytest

from backend.cli.main import main
from backend.service import Workspace
from backend.store.tables import ArtifactRow, EvaluationRow, ModelRow, PresetRow

NAN = '{"id": "my/own", "model": "starter", "goal": "balanced", "published": [{"value": NaN}]}'
ROWS = {
    "preset": PresetRow(
        id="my/own", model="starter", goal="balanced", origin="own", target="local", hash="0", document=NAN
    ),
    "artifact": ArtifactRow(
        id="a-1", job_id="j-1", model="starter", recipe="x", recipe_hash="0", path="", bytes=1, manifest="{"
    ),
    "evaluation": EvaluationRow(id="e-1", job_id="j-1", title="x", baseline="starter", path="", document="[]"),
    "model": ModelRow(path="/models/x", name="x", owner="me", card="{}"),
}


def command(home: Workspace, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    monkeypatch.setattr(sys, "argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
