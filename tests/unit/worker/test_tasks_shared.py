"""Where others reach the studio lm-eval asks no address: it follows redirects and looks names up by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import settings
from backend.domain.errors import WorkError
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.jobs.progress import NoProgress
from backend.service.evaluations import evaluations
from backend.worker.measuring.server_pool import Endpoint
from backend.worker.measuring.tasks import TaskScoring


def test_an_address_is_not_scored_for_others(tmp_path: Path) -> None:
    address = "https://models.example.org/v1"
    variant = Variant(name="theirs", source=address, kind="url", url=address)
    spec = EvaluateSpec(variants=(variant,), options=evaluations.read_options(), shared=True)
    with pytest.raises(WorkError, match="others reach this studio, and lm-eval follows redirects"):
        TaskScoring(spec, settings.load(), tmp_path, NoProgress())._server(variant, Endpoint(address, None, None))
