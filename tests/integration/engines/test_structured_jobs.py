"""Structured pruning in a job: alone, recovered, and with a quantization after it; resumed where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import artifact_folder
from backend.domain.jobs.progress import NoProgress
from backend.domain.needs import serving_memory, structure
from backend.domain.recipe.recipe import read
from backend.domain.recipe.recovery import Recover
from backend.engines.native.structured.request import CutRequest
from backend.service import Workspace
from backend.service.models import models
from backend.worker.optimizing import structured
from tests import families
from tests.tiny import TEXT, tiny_llama
from tests.worker_here import run_optimize


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny", layers=4, intermediate=384)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 6)
    return path


def test_layers_are_removed_and_the_planner_predicted_the_bytes(
    home: Workspace, model: Path, text: Path, tmp_path: Path
) -> None:
    recipe = read(
        {"name": "half", "steps": [{"prune": {"method": "depth", "cut_time": 0.5, "calibration": str(text)}}]}
    )
    output = run_optimize(home, str(model), recipe, tmp_path / "job", scored_windows=2)
    manifest = artifact_folder.read_manifest(output)
    assert manifest.structure is not None and manifest.quality is not None
    assert manifest.structure["after"]["layers"] == 2 and len(manifest.structure["removed"]) == 2
    assert manifest.calibration is not None and manifest.calibration["source"] == str(text)
    predicted = structure.apply(models.resolve(home, str(model)), recipe)
    assert manifest.bytes_after == pytest.approx(serving_memory.weights(*predicted).total, rel=0.02)
    card = models.resolve(home, str(output / "model"))
    assert (card.layers, card.parameters) == (2, predicted[0].parameters)
    assert not list(tmp_path.glob("job/*/resume*"))


def test_narrowed_recovered_and_quantized_in_one_recipe(
    home: Workspace, model: Path, text: Path, tmp_path: Path
) -> None:
    import torch

    prune = {"method": "width", "calibration": str(text), "recover": {"steps": 8, "learning_rate": 0.003}}
    steps = [{"prune": prune}, {"quantize": {"method": "w8a8", "samples": 8, "length": 32}}]
    output = run_optimize(home, str(model), read({"name": "w", "steps": steps}), tmp_path / "job", scored_windows=2)
    manifest = artifact_folder.read_manifest(output)
    assert manifest.structure is not None and manifest.recovery is not None and manifest.quality is not None
    assert manifest.structure["after"]["intermediate"] == 256
    assert set(manifest.recovery["quality"]) == {"original", "pruned", "recovered"}
    assert {"int8"} <= {str(dtype).removeprefix("torch.") for dtype in _dtypes(output / "model")}
    assert len(manifest.layers) == 4 * 7  # of the quantization
    plain = families.dense(output / "model", tmp_path / "plain")
    assert families.logits(plain, torch.arange(20)[None]).shape[-1] == 320


def test_a_stopped_job_repeats_neither_the_cut_nor_the_recovery(model: Path, tmp_path: Path) -> None:
    from backend.engines.native.structured import cut

    sizes = structure.Structure(layers=2, intermediate=384, heads=4, kv_heads=2, hidden=128)
    request = CutRequest(
        model_dir=model,
        out_dir=tmp_path / "unused",
        method="depth",
        structure=sizes,
        calibration_texts=[TEXT * 6],
        samples=4,
        length=32,
    )
    recover = Recover(steps=4, learning_rate=0.003)
    first = structured.make_smaller(request, recover, tmp_path / "resume", NoProgress())
    begun = (first.folder / "model.safetensors").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "cut", _never)
        again = structured.make_smaller(request, recover, tmp_path / "resume", NoProgress())
    assert (again.folder / "model.safetensors").read_bytes() == begun
    assert again.facts["recovery"]["curve"] == first.facts["recovery"]["curve"]
    assert structured.make_smaller(request, None, tmp_path / "resume", NoProgress()).folder.name == "pruned"


def _never(*_: Any) -> Any:
    raise AssertionError("made again")


def _dtypes(folder: Path) -> set[Any]:
    from safetensors.torch import load_file

    return {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()}
