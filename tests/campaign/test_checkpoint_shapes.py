"""The ten checkpoint shapes that people use most, each through import and three methods; one of them by the command and
by processes of their own, the others in this process by the functions that those run.

The scores in an artifact's manifest are computed again here from the saved file: transformers builds the model, and
this module rounds what a quantized linear reads. Nothing of Whetstone's scoring takes part but the choice of the text's
windows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.text import held_out_text
from backend.evaluate.quality.scoring import window_tokens
from backend.service.plans.recipe_files import read_file
from tests.campaign.served_logits import WINDOW, command, quantized_logits
from tests.families import dense, divergence, logits, tiny
from tests.homes import open_home
from tests.integration.cli.calling import whetstone
from tests.worker_here import run_optimize

pytestmark = pytest.mark.campaign

TARGET = "ml.g6.12xlarge"
"""A place whose GPUs serve all three methods; the job itself runs here."""
METHODS = {"awq": None, "w8a8": "int8", "fp8": "fp8"}
"""A bundled recipe, and the type that it rounds each token's inputs to."""
BY_COMMAND = "mistral"
"""The shape of most files: two shards beside a consolidated one."""
SHAPES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "mixtral", "qwen2-moe", "phi", "gpt2")


def as_people_have_it(folder: Path, shape: str) -> Path:
    """A tiny model of this shape. Mistral comes in two shards, with its maker's consolidated file and params.json
    beside them."""
    model = tiny(folder / f"tiny-{shape}", shape)
    if shape == "mistral":
        _consolidate(model)
    return model


def _consolidate(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = model / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    half = len(names) // 2
    shards = {
        "model-00001-of-00002.safetensors": names[:half],
        "model-00002-of-00002.safetensors": names[half:],
    }
    for shard, reserved in shards.items():
        save_file({name: tensors[name] for name in reserved}, model / shard, metadata={"format": "pt"})
    weight_map = {name: shard for shard, current in shards.items() for name in current}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    whole.rename(model / "consolidated.safetensors")
    (model / "params.json").write_text('{"dim": 128}')


def read_by_transformers(saved: Path, folder: Path, shape: str, kind: str | None, tokens: Any) -> Any:
    """The logits of the saved checkpoint. Weights alone: dequantized by compressed-tensors and loaded by
    transformers."""
    if kind is None:
        return logits(dense(saved, folder), tokens)
    return quantized_logits(saved, folder, shape, kind, tokens)


def make_by_command(home: Path, model: Path, method: str) -> Path:
    """Optimize by the command, which starts a supervisor and a worker, and return the artifact's folder."""
    done = command(home, "optimize", model, "--recipe", method, "--target", TARGET, "--wait")
    return home / "artifacts" / str(done["artifact"])


def make_here(home: Path, model: Path, method: str) -> Path:
    """Run the same job in this process, which imports torch once, and return what would become the artifact."""
    return run_optimize(open_home(home), str(model), read_file(Path(method)), home / f"job-{method}", TARGET)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_hold_when_transformers_alone_reads_the_saved_file(tmp_path: Path, shape: str) -> None:
    import torch

    model, home = as_people_have_it(tmp_path, shape), tmp_path / "home"
    imported = whetstone(home, "models", "import", model)
    assert imported.returncode == 0, imported.stderr
    make = make_by_command if shape == BY_COMMAND else make_here
    tokens = None
    for method, kind in METHODS.items():
        # 1. Make the artifact, and read what its manifest says of its quality.
        saved = make(home, model, method)
        quality = json.loads((saved / "manifest.json").read_text())["quality"]
        # 2. Score the saved file again without Whetstone's engine.
        if tokens is None:
            documents = held_out_text.read(None, model).documents
            tokens = window_tokens(model, documents, WINDOW, quality["windows"])
            original = logits(model, tokens)
        variant = read_by_transformers(saved / "model", tmp_path / f"dense-{method}", shape, kind, tokens)
        # 3. Positions that are scored have a next token.
        again = divergence(original[:, :-1], variant[:, :-1])
        following = tokens[:, 1:, None]
        loss = -variant[:, :-1].double().log_softmax(-1).gather(-1, following).mean()
        assert quality["kl_mean"] == pytest.approx(again, rel=0.03, abs=1e-5), method
        assert quality["perplexity_after"] == pytest.approx(float(torch.exp(loss)), rel=0.01), method
        shutil.rmtree(tmp_path / f"dense-{method}")
