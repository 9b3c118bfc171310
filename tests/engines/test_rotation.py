"""Rotating the hidden state before a quantization: the same function, a smaller loss where channels are outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack
from backend.domain.jobs.progress import NoProgress
from backend.domain.maths.hadamard import find_factors
from backend.domain.needs.rotation import FAMILIES
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native.rotated import checkpoint
from backend.engines.native.rotated.hadamard import Rotation
from backend.evaluate.quality import scoring
from tests.families import KINDS, dense, divergence, logits, tiny
from tests.helpers.quantizing import run
from tests.tiny import TEXT, tiny_llama

ROTATED_KINDS = [kind for kind, (model_type, _) in KINDS.items() if model_type in FAMILIES]


def request(model: Path, folder: Path, **changes: Any) -> QuantizeRequest:
    values = {"method": "w8a8", "bits": 8, "tuning": {"rotate": True}, "calibration_texts": [TEXT], **changes}
    return QuantizeRequest(model_dir=model, out_dir=folder / "out", work_dir=folder / "work", **values)


def some_tokens() -> Any:
    import torch

    return torch.randint(1, 256, (2, 48), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [1, 4, 12, 28, 36, 40, 576])
def test_a_rotation_keeps_lengths_and_spreads_one_channel_evenly(size: int) -> None:
    import torch

    assert find_factors(size) is not None
    rotation = Rotation(size, 0)
    matrix = rotation.columns(torch.eye(size))
    assert torch.allclose(matrix @ matrix.T, torch.eye(size), atol=1e-5)
    assert torch.allclose(matrix.abs(), torch.full((size, size), size**-0.5))
    some = torch.randn(size, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rotation.rows(some), matrix.T @ some, atol=1e-5)


def test_every_family_that_the_rules_take_has_a_model_here() -> None:
    assert {KINDS[kind][0] for kind in ROTATED_KINDS} == set(FAMILIES)


@pytest.mark.parametrize("kind", ROTATED_KINDS)
def test_the_rotated_model_computes_the_same(tmp_path: Path, kind: str) -> None:
    source = tiny(tmp_path / "source", kind)
    rotating = request(source, tmp_path)
    checkpoint.make_rotated(rotating, NoProgress())
    rotated = checkpoint.find_folder(rotating)
    original = logits(source, some_tokens())
    assert divergence(original, logits(rotated, some_tokens())) < 1e-3
    run(source, tmp_path / "int8", method="w8a8", bits=8, rotate=True)
    assert divergence(original, logits(dense(tmp_path / "int8", tmp_path / "dense"), some_tokens())) < 5e-3


def test_a_tied_head_becomes_one_of_its_own(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source", tied=True)
    run(source, tmp_path / "out", method="w8a8", bits=8, rotate=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out", "source"], "what was rotated is gone"


def test_outlier_channels_cost_less(tmp_path: Path) -> None:
    """Two channels of the norms are forty times the others, as in trained models (Dettmers et al. 2022)."""
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "source", tied=False)
    weights = load_file(source / "model.safetensors")
    for name in ("model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"):
        weights[name][:2] *= 40
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    losses = []
    for rotate in (False, True):
        run(source, tmp_path / f"{rotate}", method="w8a8", bits=8, rotate=rotate)
        scores = scoring.score(source, tmp_path / f"{rotate}", TEXT, length=64, progress=NoProgress())
        losses.append(float(scores["kl_mean"]))
    assert losses[1] < 0.5 * losses[0]


def test_a_later_attempt_goes_on_from_the_rotated_model(tmp_path: Path) -> None:
    rotating = request(tiny_llama(tmp_path / "source"), tmp_path)

    def stop(*_: Any) -> Any:
        raise KeyError("the machine went down")

    with pytest.raises(KeyError):
        checkpoint.quantize_rotated(rotating, NoProgress(), stop)
    weights = checkpoint.find_folder(rotating) / "model.safetensors"
    first = weights.stat().st_mtime_ns
    checkpoint.make_rotated(rotating, NoProgress())
    assert weights.stat().st_mtime_ns == first
    # Another seed is another model.
    checkpoint.make_rotated(rotating.model_copy(update={"seed": 1}), NoProgress())
    assert weights.stat().st_mtime_ns != first


def test_what_cannot_be_rotated_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused: tuple[tuple[Path, dict[str, Any], str], ...] = (
        (tiny(tmp_path / "gemma", "gemma"), {}, "dense text models"),
        (tiny_llama(tmp_path / "odd", hidden=108, heads=6, kv_heads=2), {}, "Hadamard matrix of order"),
        (tiny_llama(tmp_path / "pruned"), {"pruning": Pruning(method="wanda")}, "zeros of a pruning"),
    )
    for model, changes, words in refused:
        rotating = request(model, tmp_path / "work", **changes)
        with pytest.raises(ImpossibleStack, match=words):
            checkpoint.make_rotated(rotating, NoProgress())
        assert not rotating.out_dir.exists() and not checkpoint.find_folder(rotating).exists()
