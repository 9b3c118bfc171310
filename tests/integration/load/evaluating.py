"""Evaluates by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Evaluation
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import supervisors
from tests.homes import until_ended


def evaluated(home: Workspace, urls: list[str], **chosen: Any) -> tuple[Evaluation, Path]:
    """The document of an evaluation that was run to its end, and its folder."""
    options = evaluations.read_options(**({"quality": False, "max_tokens": 4, "warmup_seconds": 0.1} | chosen))
    job = evaluations.submit(home, evaluations.prepare(home, urls, options))
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    shown = evaluations.show(home, str(ended.result["evaluation"]))
    return shown.document, Path(shown.path)
