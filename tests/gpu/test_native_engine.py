"""The native engine on a CUDA device: what it writes, scores and trains there is what the processor makes of the same
request.

Needs torch with CUDA, and no vLLM: `make test-gpu-torch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe import precision
from backend.domain.recipe.draft_training import DraftKind, Training
from backend.engines.base import QuantizeRequest
from backend.engines.drafts.train import TrainRequest, train
from backend.engines.native import measure
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import open_plain
from backend.layered.layer_passes import devices
from tests.helpers.quantizing import METHODS, run
from tests.helpers.recovery_cases import FAST, Case, same_but_for_the_kept_weights
from tests.tiny import TEXT, tiny_llama

pytestmark = pytest.mark.gpu
GPU = "cuda:0"
SAME = 0.98
"""Share of weights that are equal bit for bit, where no text is read."""
UNREAD = {"rtn", "rtn 8 bits", "w8a8", "int8", "fp8", "fp8 cache", "int8 with fp8 cache"}
"""Methods whose weights hang on no text: the calibration of the others runs in bfloat16, whose sums differ a little
between devices, and a search may then end one step further."""
PROMPTS = tuple(f"def number_{number}(first):\n    return first + {number}" for number in range(12))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama", layers=3)


def kl(model: Path, candidate: Path, device: str) -> float:
    place = ScoringPlace((device,))
    return float(score(model, candidate, TEXT, length=64, progress=NoProgress(), place=place)["kl_mean"])


def equal_weights(first: Path, second: Path) -> float:
    """Return the share of all weights, dequantized, that are the same in both checkpoints."""
    equal = total = 0
    sources = [open_plain(folder) for folder in (first, second)]
    names = sorted(sources[0].plain())
    assert names == sorted(sources[1].plain())
    others = dict(sources[1].read(names))
    for name, tensor in sources[0].read(names):
        equal += int((tensor == others[name]).sum())
        total += tensor.numel()
    return equal / total


def test_the_device_is_found() -> None:
    assert devices()[0] == GPU


@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_writes_what_the_processor_writes(model: Path, tmp_path: Path, name: str) -> None:
    options, most = METHODS[name]
    reports = {}
    for place, device in (("processor", "cpu"), ("gpu", GPU)):
        result = run(model, tmp_path / place, devices=(device,), **options)
        reports[place] = {layer["name"]: layer["relative_error"] for layer in result.layers}
    assert kl(model, tmp_path / "gpu", GPU) < most
    assert kl(model, tmp_path / "gpu", "cpu") < most
    assert kl(model, tmp_path / "gpu", "cpu") == pytest.approx(kl(model, tmp_path / "processor", "cpu"), rel=0.2)
    assert name not in UNREAD or equal_weights(tmp_path / "processor", tmp_path / "gpu") >= SAME
    for linear, error in reports["processor"].items():
        assert reports["gpu"][linear] == pytest.approx(error, rel=0.05, abs=1e-4)


def test_a_request_gives_the_same_bytes_twice(model: Path, tmp_path: Path) -> None:
    options = METHODS["gptq after awq"][0]
    for name in ("first", "second"):
        run(model, tmp_path / name, devices=(GPU,), **options)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


def test_two_workers_on_one_device_share_the_text(model: Path, tmp_path: Path) -> None:
    options = METHODS["gptq"][0]
    run(model, tmp_path / "one", devices=(GPU,), **options)
    run(model, tmp_path / "two", devices=(GPU, GPU), **options)
    assert kl(model, tmp_path / "two", GPU) == pytest.approx(kl(model, tmp_path / "one", GPU), rel=0.2)


def test_scores_of_a_gpu_are_those_of_the_processor(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path / "out", devices=(GPU,), **METHODS["rtn"][0])
    assert kl(model, tmp_path / "out", GPU) == pytest.approx(kl(model, tmp_path / "out", "cpu"), rel=0.01)
    assert kl(model, model, GPU) == 0


def test_the_loss_of_each_group_is_measured(model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "rtn", "bits": 4, "group_size": 64, "symmetric": False}
    candidates = precision.candidates({**options, "eight_bits": "w8a8"}, "w8a8")
    measured = {}
    for place, device in (("processor", "cpu"), ("gpu", GPU)):
        request = QuantizeRequest(
            model_dir=model,
            out_dir=tmp_path / place,
            calibration_texts=[TEXT],
            samples=8,
            length=32,
            devices=(device,),
            **options,
        )
        measured[place] = measure(request, candidates, NoProgress())
    assert [group.name for group in measured["processor"]] == [group.name for group in measured["gpu"]]
    for expected, group in zip(measured["processor"], measured["gpu"], strict=True):
        assert group.losses == pytest.approx(expected.losses, rel=0.1, abs=1e-5)


@pytest.mark.parametrize("teacher", [True, False])
def test_a_pruned_model_recovers(tmp_path: Path, teacher: bool) -> None:
    case = Case.prune(tiny_llama(tmp_path / "llama"))
    result = case.recover(tmp_path / "out", FAST.model_copy(update={"teacher": teacher}), device=GPU)
    assert result.loss_after < result.loss_before
    same_but_for_the_kept_weights(case, tmp_path / "out")


@pytest.mark.parametrize("kind", ["small", "eagle3", "medusa"])
def test_a_draft_is_trained(model: Path, tmp_path: Path, kind: DraftKind) -> None:
    options = Training(
        kind=kind,
        hidden=64,
        layers=1,
        steps=30,
        answers=20,
        answer_tokens=12,
        batch=4,
        tokens=2,
        minutes=2.0,
        learning_rate=1e-2,
        loss="kl",
    )
    out = tmp_path / "draft"
    out.mkdir()
    request = TrainRequest(
        target_dir=model, out_dir=out, options=options, prompts=PROMPTS, work_dir=tmp_path / "work", device=GPU
    )
    result = train(request, NoProgress())
    assert result.curve[-1].validation < result.curve[0].validation
    assert (out / "model.safetensors").is_file()
