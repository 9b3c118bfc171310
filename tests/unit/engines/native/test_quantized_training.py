"""Recovery after quantization: what is learned, what stays, the same bytes again, and what it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from backend.domain.errors import ImpossibleStack
from backend.domain.recipe.recovery import RecoverQuantized
from backend.engines.base import Pruning
from backend.engines.native.recovery.quantized_weights import QuantizedWeights
from backend.layered.dequantize import open_plain
from tests import families
from tests.helpers.recovery_cases import changed, quantized, trained
from tests.helpers.stopping import Stopped, StoppingAt
from tests.tiny import tiny_llama

SCALES = RecoverQuantized(steps=8, learning_rate=0.01)
WEIGHTS = RecoverQuantized(steps=12, learning_rate=0.01, learn="weights")


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama", hidden=64, intermediate=128)


@pytest.fixture(scope="module")
def start(model: Path) -> Path:
    return quantized(model)


@pytest.mark.parametrize(
    ("options", "parts"), [(SCALES, {"weight_scale"}), (WEIGHTS, {"weight_scale", "weight_packed"})]
)
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_loss_falls_and_only_what_is_learned_changes(
    model: Path, tmp_path: Path, options: RecoverQuantized, parts: set[str], symmetric: bool
) -> None:
    before = quantized(model, symmetric=symmetric, seed=len(parts))
    result = trained(model, before, tmp_path / "out", options)
    assert result.improved and result.loss_after < result.loss_before
    assert changed(before, tmp_path / "out") == parts
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in before.iterdir()}


def test_the_written_weights_are_those_that_were_measured(model: Path, start: Path, tmp_path: Path) -> None:
    """A second recovery begins at the loss at which the first one ended."""
    first = trained(model, start, tmp_path / "first", WEIGHTS)
    second = trained(model, tmp_path / "first", tmp_path / "second", RecoverQuantized(steps=1))
    assert second.loss_before == pytest.approx(first.loss_after, rel=1e-4)


@pytest.mark.parametrize(("bits", "rate"), [(4, 0.001), (8, 0.0000625)])
def test_without_a_rate_of_its_own_it_is_by_the_bits(model: Path, tmp_path: Path, bits: int, rate: float) -> None:
    result = trained(model, quantized(model, bits=bits), tmp_path / "out", RecoverQuantized(steps=1))
    assert result.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "falcon-7b"])
def test_before_the_first_step_the_model_is_the_checkpoint(tmp_path: Path, kind: str) -> None:
    """Also where a family stores its matrices the other way round."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = families.tiny(tmp_path / kind, kind, layers=1)
    folder = quantized(plain)
    expected = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    source = open_plain(folder)
    weights = QuantizedWeights(plain, folder, "weights", "cpu")
    state = expected.state_dict()
    for name, matrix in weights.matrices.items():
        state[f"{matrix.path}.weight"].copy_(source.one(f"{name}.weight"))
    tokens = torch.arange(16)[None]
    assert weights.matrices
    assert torch.allclose(weights.model(tokens).logits, expected(tokens).logits, atol=1e-5)
    (tmp_path / "again").mkdir()
    weights.write(tmp_path / "again")
    assert changed(folder, tmp_path / "again") == set()


def test_the_reverse_divergence_is_another_loss_of_the_same_steps(model: Path, start: Path, tmp_path: Path) -> None:
    forward = trained(model, start, tmp_path / "forward", SCALES)
    reverse = trained(model, start, tmp_path / "reverse", SCALES.model_copy(update={"divergence": "reverse"}))
    assert reverse.loss_before == forward.loss_before and reverse.loss_after < reverse.loss_before
    assert reverse.curve[1].training != forward.curve[1].training
    assert digest(tmp_path / "reverse") != digest(tmp_path / "forward")


@pytest.mark.parametrize("options", [SCALES, WEIGHTS])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    model: Path, start: Path, tmp_path: Path, options: RecoverQuantized
) -> None:
    whole = trained(model, start, tmp_path / "whole", options)
    with pytest.raises(Stopped):
        trained(model, start, tmp_path / "out", options, StoppingAt("recover", 1, 3))
    assert trained(model, start, tmp_path / "out", options) == whole
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_where_nothing_was_better_the_quantized_weights_are_kept(model: Path, start: Path, tmp_path: Path) -> None:
    result = trained(model, start, tmp_path / "out", RecoverQuantized(steps=40, learning_rate=1.0, patience=1))
    assert (result.improved, result.best_step) == (False, 0)
    assert digest(tmp_path / "out") == digest(start)


def test_zeros_of_a_pruned_model_stay_where_scales_are_learned(model: Path, tmp_path: Path) -> None:
    before = quantized(model, pruning=Pruning(method="magnitude", pattern="2:4"))
    trained(model, before, tmp_path / "out", SCALES)
    old, new = open_plain(before), open_plain(tmp_path / "out")
    for name in QuantizedWeights(model, before, "scales", "cpu").matrices:
        zeros = old.one(f"{name}.weight") == 0
        assert zeros.float().mean() >= 0.5
        assert bool((new.one(f"{name}.weight")[zeros] == 0).all())


def test_learned_weights_begin_where_the_original_lies_between_two_integers(model: Path) -> None:
    """Also after AWQ, which scales rows and columns before it rounds."""

    folder = quantized(model, method="awq", tuning={"clip": False})
    weights = QuantizedWeights(model, folder, "weights", "cpu")
    for name, matrix in weights.matrices.items():
        units = weights.named()[f"{name}.weight"].detach()
        distances = (units - units.round()).abs()
        assert float(distances.max()) <= 0.49 + 1e-4
        assert 0.2 < float(distances.mean()) < 0.3, matrix.path  # spread evenly over half a unit


def test_experts_are_refused(tmp_path: Path) -> None:
    experts = families.tiny(tmp_path / "mixtral", "mixtral", layers=1)
    with pytest.raises(ImpossibleStack, match="made of experts: leave `recover` out"):
        trained(experts, quantized(experts), tmp_path / "out", SCALES)
