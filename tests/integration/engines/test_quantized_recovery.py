"""Recovery after quantization in a job: alone, after a recovery of pruned weights, and of a smaller model."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import artifact_folder
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recipe import read
from backend.domain.recipe.recovery import RecoverQuantized
from backend.engines import native
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.layered.dequantize import open_plain
from backend.service import Workspace
from backend.worker.optimizing import recovery
from tests.helpers.stopping import Stopped, StoppingAt
from tests.tiny import TEXT, tiny_llama
from tests.worker_here import run_optimize

SCALES = {"steps": 8, "learning_rate": 0.005}
QUANTIZE: dict[str, Any] = {"method": "rtn", "group_size": 32, "samples": 8, "length": 32, "recover": SCALES}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny", layers=4, hidden=64, intermediate=384)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 6)
    return path


def optimized(home: Workspace, model: Path, tmp_path: Path, *steps: dict[str, Any]) -> tuple[Path, Manifest]:
    recipe = read({"name": "r", "steps": list(steps)})
    output = run_optimize(home, str(model), recipe, tmp_path / "job", scored_windows=2)
    assert not list(tmp_path.glob("job/*/resume*"))
    return output, artifact_folder.read_manifest(output)


def test_what_is_stored_is_trained_and_the_report_says_what_that_gained(
    home: Workspace, model: Path, text: Path, tmp_path: Path
) -> None:
    output, manifest = optimized(home, model, tmp_path, {"quantize": QUANTIZE | {"calibration": str(text)}})
    record = manifest.quantized_recovery
    assert record is not None and manifest.recovery is None and manifest.quality is not None
    assert record["asked"] == RecoverQuantized(**SCALES).all_options() and record["objective"] == "kl"
    assert record["improved"] and record["loss_after"] < record["loss_before"]
    stages = record["quality"]
    assert list(stages) == ["original", "quantized", "recovered"]
    assert stages["recovered"]["kl_mean"] == manifest.quality["kl_mean"] != stages["quantized"]["kl_mean"]
    assert manifest.calibration is not None and manifest.calibration["source"] == str(text)
    assert len(manifest.layers) == 4 * 7 and (output / "model" / "config.json").is_file()


def test_it_follows_a_recovery_of_the_pruned_weights_and_keeps_their_zeros(
    home: Workspace, model: Path, text: Path, tmp_path: Path
) -> None:
    prune = {"method": "wanda", "pattern": "2:4", "calibration": str(text), "recover": {"steps": 4}}
    output, manifest = optimized(home, model, tmp_path, {"prune": prune}, {"quantize": QUANTIZE})
    assert manifest.recovery is not None and manifest.quantized_recovery is not None
    assert list(manifest.recovery["quality"]) == ["original", "pruned", "recovered"]
    source = open_plain(output / "model")
    for layer in manifest.layers:
        assert float((source.one(f"{layer['name']}.weight") == 0).float().mean()) >= 0.5


def test_the_whole_original_teaches_a_smaller_model(home: Workspace, model: Path, text: Path, tmp_path: Path) -> None:
    prune = {"method": "depth", "cut_time": 0.5, "calibration": str(text)}
    _, manifest = optimized(home, model, tmp_path, {"prune": prune}, {"quantize": QUANTIZE})
    assert manifest.structure is not None and manifest.structure["after"]["layers"] == 2
    assert manifest.quantized_recovery is not None and manifest.quantized_recovery["improved"]


def test_stopped_in_any_part_it_goes_on_to_the_same_bytes_and_does_no_part_twice(model: Path, tmp_path: Path) -> None:
    def train_into(name: str, progress: NoProgress) -> dict[str, Any]:
        request = QuantizeRequest(
            model_dir=model,
            out_dir=tmp_path / name,
            method="rtn",
            bits=4,
            group_size=32,
            calibration_texts=[TEXT * 3],
            samples=4,
            length=16,
            work_dir=tmp_path / f"{name}-work",
        )

        def quantize(request: QuantizeRequest) -> recovery.Changed:
            result: QuantizeResult = partial(native.quantize, progress=progress)(request)
            return recovery.Changed(result=result.model_dump(mode="json"))

        options = RecoverQuantized(steps=4, learning_rate=0.005)
        return recovery.quantize_and_recover(request, options, model, progress, quantize).quantized_recovery or {}

    whole = train_into("whole", NoProgress())
    for stop in (StoppingAt("optimize", 1, 1), StoppingAt("recover", 1, 2)):
        with pytest.raises(Stopped):
            train_into("out", stop)
    last = StoppingAt()
    assert train_into("out", last)["curve"] == whole["curve"]
    assert last.seen == ["recover"]  # the quantized weights were there
    assert _digest(tmp_path / "out") == _digest(tmp_path / "whole")


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
