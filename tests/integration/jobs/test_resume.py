"""A run that was killed goes on at the next layer and ends in the same bytes; a run cannot go on from another's
layers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe import recipe
from backend.engines.base import QuantizeRequest
from backend.engines.native import quantize
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.plans import optimize
from tests import homes
from tests.held_workers import hold_once
from tests.homes import until_ended
from tests.integration.cli.calling import process
from tests.tiny import TEXT, tiny_llama

AWQ = recipe.read({"name": "awq", "steps": [{"quantize": {"method": "awq", "group_size": 32}}]})


class Stopped(Exception):
    """As a kill would, in the middle of a layer."""


class StoppingIn(NoProgress):
    """Stops as soon as the layer of this number (from 1) has begun."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.notes: list[str] = []

    def advance(self, done: float, **_: object) -> None:
        if done > self.layer - 1:
            raise Stopped

    def note(self, message: str, **_: object) -> None:
        self.notes.append(message)


def request(model: Path, out: Path, work: Path | None, seed: int = 0, spill: int = 2_000_000_000) -> QuantizeRequest:
    return QuantizeRequest(
        model_dir=model,
        out_dir=out,
        method="awq",
        bits=4,
        group_size=32,
        symmetric=False,
        calibration_texts=[TEXT],
        samples=8,
        length=32,
        seed=seed,
        work_dir=work,
        spill_bytes=spill,
    )


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama", hidden=64, layers=4, intermediate=128)


@pytest.mark.parametrize("spill", [2_000_000_000, 0], ids=["in memory", "in files"])
def test_a_stopped_run_goes_on_at_the_next_layer_to_the_same_bytes(model: Path, tmp_path: Path, spill: int) -> None:
    whole = quantize(request(model, tmp_path / "whole", None), NoProgress())
    work = tmp_path / "work"
    with pytest.raises(Stopped):
        quantize(request(model, tmp_path / "out", work, spill=spill), StoppingIn(3))
    assert len(list(work.glob("part-*"))) == 3
    again = StoppingIn(100)
    resumed = quantize(request(model, tmp_path / "out", work, spill=spill), again)
    assert again.notes == ["2 of 4 layers were done before: going on with layer 3."]
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    assert resumed.layers == whole.layers
    assert not work.exists()


def test_another_request_or_damaged_hidden_states_begin_anew(model: Path, tmp_path: Path) -> None:
    quantize(request(model, tmp_path / "whole", None), NoProgress())
    for attempt, seed in ((1, 5), (2, 0)):
        with pytest.raises(Stopped):
            quantize(request(model, tmp_path / "out", tmp_path / "work", seed), StoppingIn(2))
        if attempt == 2:
            (hidden,) = (tmp_path / "work").glob("hidden-*")
            hidden.write_bytes(bytes(hidden.stat().st_size))
        again = StoppingIn(100)
        quantize(request(model, tmp_path / f"out-{attempt}", tmp_path / "work", 0), again)
        assert again.notes == []
        assert weights(tmp_path / f"out-{attempt}") == weights(tmp_path / "whole")


@pytest.mark.campaign
def test_a_job_killed_in_layer_3_of_8_resumes_to_the_same_weights(home: Workspace, tmp_path: Path) -> None:
    model = str(tiny_llama(tmp_path / "model", layers=8))

    def submitted() -> str:
        return optimize.submit(home, homes.prepare(home, model, AWQ)).id

    def in_layer_3() -> bool:
        event = jobs.latest_progress(home, job)
        return event is not None and event.phase == "optimize" and 2 <= (event.done or 0) < 8

    job = submitted()
    supervisors.ensure_running(home)
    os.kill(hold_once(home, job, in_layer_3), signal.SIGKILL)
    assert until_ended(home, job).state is JobState.FAILED
    done = process(home.settings.home, "jobs", "resume", job, "--wait", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["state"] == "succeeded", done.stderr
    resumed, whole = jobs.show(home, job), until_ended(home, submitted())
    assert (resumed.state, resumed.attempt, whole.state) == (JobState.SUCCEEDED, 2, JobState.SUCCEEDED), resumed.error
    assert any("layers were done before" in (event.message or "") for event in jobs.timeline(home, job))
    results = [home.settings.artifacts / str(view.result["artifact"]) / "model" for view in (resumed, whole)]
    assert weights(results[0]) == weights(results[1])
    assert not list((home.settings.jobs / job).glob("*/resume"))
