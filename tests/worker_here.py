"""Runs an optimize job in the test's own process: no supervisor and no worker, which import torch anew for each job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.channel import Channel, JobChannel
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.worker.kinds import optimize
from backend.worker.resources import PeakMemory
from tests.homes import prepare


def run_optimize(
    workspace: Workspace, source: str, recipe: Recipe, folder: Path, target: str = "local", **changes: Any
) -> Path:
    """Check the job as a submit does, do its work with `folder` as the job's channel, and return the folder of the
    artifact that a supervisor would register; `changes` are fields of the specification."""
    spec = prepare(workspace, source, recipe, target).spec.model_copy(update=changes)
    Channel(folder).open(spec.model_dump_json())
    channel = JobChannel(folder / "1")
    with pytest.MonkeyPatch.context() as patch, PeakMemory() as memory:
        patch.setenv("WHETSTONE_HOME", str(workspace.settings.home))
        optimize.run(spec, channel, memory)
    assert json.loads((channel.output / "manifest.json").read_text())["parent"]["path"] == spec.model.path
    return channel.output
