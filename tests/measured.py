"""A real evaluation of the starter model, one that comes with the studio, as if this machine had measured it."""

from __future__ import annotations

import json
from typing import Any

from backend.catalog.bundled import models
from backend.domain.evaluation.document import Evaluation
from backend.hardware import probe, processor_speed
from backend.service import Workspace
from backend.settings import ASSETS
from tests import studio
from tests.homes import PROBED, probe_once

STARTER = "@{checkout}/assets/starter/target"


def document(**hardware: Any) -> Evaluation:
    """Original, w8a8, draft and w8a8 + draft at 1 and 4 streams; `hardware` changes where it was measured."""
    card = models.card("starter")
    assert card is not None
    row = json.loads((ASSETS / "catalog" / "measured" / "evaluations.json").read_text())[0]["document"]
    text = row if isinstance(row, str) else json.dumps(row)
    evaluation = Evaluation.model_validate_json(text.replace(STARTER, card.path))
    return evaluation.model_copy(update={"hardware": {**probe.probe(), **hardware}})


def store(workspace: Workspace, identity: str = "e-measured", **hardware: Any) -> Evaluation:
    """Put it into the home."""
    evaluation = document(**hardware)
    studio.evaluation(workspace, evaluation, identity, "Evaluate starter, w8a8, draft, w8a8 + draft")
    return evaluation


def probed(workspace: Workspace, speed: processor_speed.Speed = PROBED) -> None:
    """Its processor was measured so before."""
    probe_once(workspace.settings, speed)
