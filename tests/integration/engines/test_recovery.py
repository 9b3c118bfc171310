"""Pruning, recovery and quantization in one job: through the command line, and stopped in each of its parts."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recovery import Recover
from backend.engines import native
from backend.engines.base import Pruning, QuantizeRequest
from backend.service.jobs import artifacts, jobs
from backend.service.plans import recipe_files
from backend.worker.optimizing import recovery
from tests import homes
from tests.helpers.recipe_files import recipe as written
from tests.helpers.stopping import Stopped, StoppingAt
from tests.homes import open_home
from tests.integration.cli.calling import process
from tests.tiny import TEXT, tiny_llama

RECIPE = """name: recovered
steps:
  - prune: {{method: wanda, pattern: "2:4", calibration: {text}, recover: {{steps: 20, learning_rate: 0.002}}}}
  - quantize: {{method: gptq, group_size: 32, samples: {samples}, length: 32}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama", hidden=64, intermediate=128)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_stopped_in_any_part_it_goes_on_to_the_same_bytes_and_does_no_part_twice(model: Path, tmp_path: Path) -> None:
    def quantize_into(name: str, progress: NoProgress) -> dict[str, Any]:
        request = QuantizeRequest(
            model_dir=model,
            out_dir=tmp_path / name,
            method="w8a8",
            bits=8,
            pruning=Pruning(method="wanda", pattern="2:4"),
            calibration_texts=[TEXT * 3],
            samples=4,
            length=16,
            work_dir=tmp_path / f"{name}-work",
        )
        quantize = partial(native.quantize, progress=progress)
        options = Recover(steps=4, learning_rate=0.005)
        return recovery.prune_and_recover(request, options, progress, quantize).recovery or {}

    whole = quantize_into("whole", NoProgress())
    for stop in (StoppingAt("optimize", 1, 1), StoppingAt("recover", 1, 2), StoppingAt("optimize", 1, 1)):
        with pytest.raises(Stopped):
            quantize_into("out", stop)
    last = StoppingAt()
    resumed = quantize_into("out", last)
    assert last.seen == ["load", "optimize", "write"]  # of the quantization alone
    assert resumed["curve"] == whole["curve"]
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


@pytest.mark.campaign
def test_a_recipe_with_recovery_from_the_command_line(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 6)
    chosen = written(tmp_path, RECIPE.format(text=text, samples=8))
    done = process(tmp_path / "home", "optimize", str(model), "--recipe", chosen, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    reported = document["recovery"]
    assert reported["asked"] == {**Recover().all_options(), "steps": 20, "learning_rate": 0.002}
    assert reported["loss_after"] < reported["loss_before"]
    assert reported["quality"]["recovered"]["kl_mean"] < reported["quality"]["pruned"]["kl_mean"]
    assert reported["quality"]["original"]["perplexity"] == document["quality"]["perplexity_before"]
    home = open_home(tmp_path / "home")
    manifest = artifacts.verify(home, document["artifact"]).manifest
    assert manifest.recovery == reported
    assert [layer["zeros"] for layer in manifest.layers] == [0.5] * 14
    events = [event for _, event in jobs.events(home, document["job"])]
    assert [event.data for event in events if event.kind == "point"] == reported["curve"]
    assert any((event.message or "").startswith("Perplexity is ") for event in events)
    assert not list((home.settings.jobs / document["job"]).glob("*/resume"))


def test_text_that_leaves_nothing_to_learn_from_is_refused(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 6)
    chosen = recipe_files.read_text(RECIPE.format(text=text, samples=64))
    required = "recovery needs 2,432: 64 sequences of 32 to calibrate with and 12 that it did not see"
    with pytest.raises(InvalidWorkload, match=required):
        homes.prepare(open_home(tmp_path / "home"), str(model), chosen)
