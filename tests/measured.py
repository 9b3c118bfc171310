"""A real evaluation of the starter model, one that comes with the studio, as if this machine had measured it."""

from __future__ import annotations

import json
from typing import Any

from backend.catalog.bundled import models
from backend.domain.evaluation.document import Evaluation
from backend.hardware import probe, speed
from backend.service import Workspace
from backend.settings import ASSETS
from tests import studio

STARTER = "@{checkout}/assets/starter/target"


def document(**hardware: Any) -> Evaluation:
    """Original, w8a8, draft and w8a8 + draft at 1 and 4 streams; `hardware` changes where it was measured."""
    card = models.card("starter")
    assert card is not None
    row = json.loads((ASSETS / "catalog" / "measured" / "evaluations.json").read_text())[0]["document"]
    text = row if isinstance(row, str) else json.dumps(row)
    found = Evaluation.model_validate_json(text.replace(STARTER, card.path))
    return found.model_copy(update={"hardware": {**probe.probe(), **hardware}})


def store(workspace: Workspace, identity: str = "e-measured", **hardware: Any) -> Evaluation:
    """Put it into the home."""
    made = document(**hardware)
    studio.evaluation(workspace, made, identity, "Evaluate starter, w8a8, draft, w8a8 + draft")
    return made


PROBED = speed.Speed(60e9, 40e9, 0.9e12)


def probed(workspace: Workspace, kept: speed.Speed = PROBED) -> None:
    """What an earlier measurement of this machine left behind."""
    row = kept._asdict() | {"at": "2026-11-21T04:00:00+00:00", "busy": False}
    workspace.settings.cache.mkdir(parents=True, exist_ok=True)
    document = {"processor": speed._key(), "attempts": [row] * speed.ATTEMPTS}
    (workspace.settings.cache / speed.FILE).write_text(json.dumps(document))
