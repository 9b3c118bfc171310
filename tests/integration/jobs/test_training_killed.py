"""A train job whose worker was killed goes on when it is resumed, and ends in the draft of one that was not."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from backend.catalog.text import training_prompts
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import read
from backend.engines.drafts.train import TrainRequest, train
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.models import models
from backend.service.plans import cases, training
from tests import homes
from tests.held_workers import hold_once
from tests.homes import until_ended
from tests.tiny import tiny_llama

OPTIONS = Training(
    hidden=64,
    layers=1,
    steps=60,
    answers=16,
    answer_tokens=12,
    batch=4,
    tokens=2,
    loss="kl",
    temperature=1.0,
    greedy=0.0,
)


@pytest.mark.campaign
@pytest.mark.process
def test_a_killed_training_goes_on_to_the_same_draft(tmp_path: Path) -> None:
    home = homes.open_home(tmp_path / "home")
    path, target = tmp_path / "own.jsonl", tiny_llama(tmp_path / "tiny")
    path.write_text("".join(json.dumps({"prompt": f"def number_{number}(first):"}) + "\n" for number in range(12)))
    spec = training.prepare(home, str(target), OPTIONS, str(path))
    job = training.submit(home, spec)
    supervisors.ensure_running(home)
    remaining = home.settings.home / "jobs" / job.id

    os.kill(hold_once(home, job.id, lambda: any(remaining.rglob("state.json"))), signal.SIGKILL)
    assert until_ended(home, job.id).state is JobState.FAILED
    jobs.resume(home, job.id)
    ended = until_ended(home, job.id)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), ended.error
    artifact = artifacts.show(home, str(ended.result["artifact"]))
    assert artifact.manifest.training is not None
    out = tmp_path / "whole"
    out.mkdir()
    model = Path(spec.model.path)
    texts = training_prompts.read(str(path), model).texts
    request = TrainRequest(target_dir=model, out_dir=out, options=OPTIONS, prompts=texts, work_dir=tmp_path / "work")
    whole = train(request, NoProgress(), training_prompts.is_held_out)
    assert artifact.manifest.training["acceptance"] == [each.model_dump(mode="json") for each in whole.acceptance]
    sha256 = {file.path: file.sha256 for file in artifact.manifest.files}["draft/model.safetensors"]
    assert sha256 == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert "| greedy |" in (Path(artifact.path) / "draft" / "README.md").read_text()
    recipe = {"speculate": {"method": "draft", "draft": artifact.id, "tokens": 2}}
    case = cases.resolve(home, models.resolve_facts(home, str(target)), read({"name": "with it", "steps": [recipe]}))
    assert case.verdict.plan is not None
