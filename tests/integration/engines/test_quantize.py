"""The native engine end to end on real files: every family and method, determinism, AWQ against rounding, bad input."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.card import read_card
from backend.domain.errors import ImpossibleStack, InvalidModel, InvalidWorkload, ModelDamaged, RequestError, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality.scoring import score
from backend.settings import ASSETS, CHECKOUT
from tests.cases.stored import gptq, store
from tests.integration.engines.quantizing import run
from tests.tiny import TEXT, byte_tokenizer, edit_json, tiny_llama

STARTER = ASSETS / "starter" / "target"


class Recorded(NoProgress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.phases: dict[str, tuple[float | None, list[float]]] = {}
        self.warnings: list[str] = []

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        self.phases[name] = (total, [])

    def advance(self, done: float, **data: Any) -> None:
        list(self.phases.values())[-1][1].append(done)

    def warn(self, message: str, **data: Any) -> None:
        self.warnings.append(message)


def loaded(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def kl(model: Path, candidate: Path) -> float:
    return float(score(model, candidate, TEXT, length=64, progress=NoProgress())["kl_mean"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.parametrize("method", ["w8a8", "awq"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_a_quantized_model_of_each_family_keeps_its_function(tmp_path: Path, family: str, method: str) -> None:
    source = tiny_llama(tmp_path / "source", family=family)
    result = run(source, tmp_path / "out", method)
    assert len(result.layers) == 14
    assert result.kept_16bit[0] == {"name": "lm_head", "why": "shared with the embedding"}
    assert kl(source, tmp_path / "out") < (0.01 if method == "w8a8" else 0.1)
    card = read_card(tmp_path / "out")
    assert card.quantization == "compressed-tensors"
    assert card.parameters == read_card(source).parameters
    assert card.tokenizer_hash == read_card(source).tokenizer_hash
    assert result.bytes_after == card.weights_bytes < result.bytes_before


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_folding_scales_changes_nothing_but_the_rounding(tmp_path: Path, family: str) -> None:
    """At 8 bits rounding costs almost nothing, so a fold into the wrong place, or a bias forgotten, would stand out."""
    source = tiny_llama(tmp_path / "source", family=family)
    result = run(source, tmp_path / "out", "awq", bits=8)
    assert any(layer["relative_error"] != layer["rtn_relative_error"] for layer in result.layers)
    assert kl(source, tmp_path / "out") < 1e-3


def test_grouped_queries_multi_head_and_untied_models_work_too(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source", kv_heads=4, tied=False)
    result = run(source, tmp_path / "out", "awq", bits=8)
    assert kl(source, tmp_path / "out") < 1e-3
    assert {entry["name"] for entry in result.kept_16bit} == {"lm_head", "embedding"}


@pytest.mark.parametrize("method", ["w8a8", "awq"])
def test_two_runs_write_the_same_bytes(model: Path, tmp_path: Path, method: str) -> None:
    first, second = (run(model, tmp_path / name, method, seed=7) for name in ("a", "b"))
    assert first == second
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_another_seed_draws_other_calibration_text(model: Path, tmp_path: Path) -> None:
    first, second = (run(model, tmp_path / str(seed), "w8a8", seed=seed, samples=2) for seed in (0, 1))
    assert first.calibration["sha256"] != second.calibration["sha256"]
    assert first.calibration | {"sha256": ""} == {"samples": 2, "length": 32, "tokens": 64, "sha256": ""}


def test_activations_of_w8a8_are_quantized_per_token_in_the_reference(model: Path, tmp_path: Path) -> None:
    """What quality scores is INT8 in and out: the library's reference equals the arithmetic by hand."""
    import torch

    run(model, tmp_path / "out", "w8a8")
    reference = loaded(tmp_path / "out")
    reference(torch.tensor([[1, 2]]))  # the library turns integers back into weights at the first use
    layer = reference.model.layers[0].self_attn.q_proj
    inputs = torch.randn(1, 3, 128, generator=torch.Generator().manual_seed(0))
    scale = inputs.abs().amax(-1, keepdim=True) / 127.5
    by_hand = (inputs / scale).round().clamp(-128, 127) * scale @ layer.weight.T
    with torch.inference_mode():
        torch.testing.assert_close(layer(inputs), by_hand, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(layer(inputs), inputs @ layer.weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_awq_loses_no_more_than_rounding_on_any_group(model: Path, tmp_path: Path, symmetric: bool) -> None:
    result = run(model, tmp_path / "out", "awq", symmetric=symmetric)
    # without clipping it reads no text
    plain = run(model, tmp_path / "rtn", "rtn", symmetric=symmetric, tuning={"clip": True})
    for before, after in zip(plain.layers, result.layers, strict=True):
        assert before["name"] == after["name"]
        assert before["rtn_relative_error"] == after["rtn_relative_error"]
    shares = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "mlp", "up_proj": "mlp"}
    grouped: dict[str, list[float]] = {}
    for layer in result.layers:
        _, _, number, _, name = layer["name"].split(".")
        ratio = (layer["relative_error"] / layer["rtn_relative_error"]) ** 2
        grouped.setdefault(f"{number}.{shares.get(name, name)}", []).append(ratio)
    assert len(grouped) == 8
    for ratios in grouped.values():
        assert sum(ratios) / len(ratios) < 1.05
    assert sum(map(sum, grouped.values())) / 14 < 0.95


def test_on_the_trained_starter_awq_diverges_no_more_than_rounding(tmp_path: Path) -> None:
    text = (ASSETS / "text" / "calibration.txt").read_text()
    held_out = (ASSETS / "text" / "held_out.txt").read_text()
    values = {}
    for method in ("awq", "rtn"):
        options = {"calibration_texts": [text], "samples": 16, "length": 256, "group_size": 128}
        result = run(STARTER, tmp_path / method, method, **options)
        values[method] = score(STARTER, tmp_path / method, held_out, length=256, windows=8, progress=NoProgress())[
            "kl_mean"
        ]
        assert math.isclose(result.bytes_after, (tmp_path / method / "model.safetensors").stat().st_size)
    assert values["awq"] <= values["rtn"]


def test_progress_counts_layers_and_tells_how_far_one_is(model: Path, tmp_path: Path) -> None:
    progress = Recorded()
    run(model, tmp_path / "out", "awq", progress, samples=1000)
    assert list(progress.phases) == ["load", "optimize", "write"]
    total, steps = progress.phases["optimize"]
    assert total == 2
    assert steps == sorted(steps)
    assert {1, 2} <= set(steps)
    assert 0 < steps[0] < 1
    assert len(progress.warnings) == 1
    assert "fewer than 1000" in progress.warnings[0]


def test_linears_that_serving_kernels_cannot_take_stay_16_bit_with_the_reason(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source", intermediate=272)
    result = run(source, tmp_path / "out", "w8a8")
    by_name = {entry["name"]: entry["why"] for entry in result.kept_16bit}
    assert {name.split(".")[-1] for name in by_name} == {"lm_head", "embedding", "gate_proj", "up_proj", "down_proj"}
    assert "multiple of 32" in by_name["model.layers.0.mlp.down_proj"]
    ignored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    assert set(ignored) == set(by_name) - {"embedding"}
    assert kl(source, tmp_path / "out") < 0.01


def test_a_model_in_fp32_is_written_in_bfloat16(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "source")
    tensors = {name: tensor.float() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    edit_json(source / "config.json", dtype="float32")
    run(source, tmp_path / "out", "w8a8")
    assert read_card(tmp_path / "out").dtype == "bfloat16"
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        "torch.bfloat16",
        "torch.float32",
        "torch.int8",
    }


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = math.inf
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WorkError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        run(source, tmp_path / "out", "w8a8")
    assert list((tmp_path / "out").iterdir()) == []


def test_activations_that_are_not_finite_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][:] = 3e38
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WorkError, match=r"input of model\.layers\.0\.mlp\.down_proj"):
        run(source, tmp_path / "out", "awq")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"calibration_texts": ["def"]}, InvalidWorkload, "shorter than one sequence of 32"),
        ({"calibration_texts": []}, InvalidWorkload, "only 0 tokens"),
        ({"group_size": 48}, ImpossibleStack, "Group size 48 does not divide the input size 128"),
    ],
)
def test_a_wrong_request_is_one_sentence(model: Path, tmp_path: Path, changes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        run(model, tmp_path / "out", "awq", **changes)
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_tokenizer_of_another_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source", layers=1)
    byte_tokenizer(source, 400)
    text = TEXT + "".join(f"<unused{number}>" for number in range(60))
    with pytest.raises(
        InvalidModel, match=r"gives token \d+ and the model knows 320 \(0 to 319\): its tokenizer files are another"
    ):
        run(source, tmp_path / "out", "w8a8", calibration_texts=[text])
    assert not (tmp_path / "out").exists()


def test_an_unknown_family_an_integer_model_and_a_full_folder_are_refused(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    edit_json(other / "config.json", model_type="opt")
    with pytest.raises(ImpossibleStack, match="'opt'"):
        run(other, tmp_path / "out", "w8a8")
    run(model, tmp_path / "out", "w8a8")
    store(Path(shutil.copytree(model, tmp_path / "packed")), gptq)
    with pytest.raises(ImpossibleStack, match=r"already quantized.*nothing announces whether its zero points"):
        run(tmp_path / "packed", tmp_path / "again", "awq")
    with pytest.raises(RequestError, match="not empty"):
        run(model, tmp_path / "out", "w8a8")


IN_A_SMALL_DISK = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.integration.engines.quantizing import run
from backend.domain.errors import DiskFull
out = Path(sys.argv[3])
try:
    run(Path(sys.argv[2]), out / "model", "w8a8")
except DiskFull as error:
    print(str(error), os.listdir(out / "model"))
"""


def test_a_disk_that_fills_up_mid_write_leaves_nothing(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=128k none "$0" && exec "$@"'
    isolated = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(disk)]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    command = [sys.executable, "-c", IN_A_SMALL_DISK, str(CHECKOUT), str(model), str(disk)]
    done = subprocess.run([*isolated, *command], capture_output=True, text=True, check=False)
    assert "The disk filled up while writing" in done.stdout, done.stderr
    assert done.stdout.rstrip().endswith("[]")


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=r"^model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        run(source, tmp_path / "out", "w8a8")
    assert not (tmp_path / "out.work").exists()


def test_inputs_wider_than_the_calibration_has_tokens_are_kept_as_tokens(tmp_path: Path) -> None:
    """With fewer calibration tokens than features the tokens stand in for the Gram matrix: 32 of them here."""
    source = tiny_llama(tmp_path / "source", layers=1)
    result = run(source, tmp_path / "out", "awq", samples=1, length=32)
    assert all(0 < layer["relative_error"] < 0.2 for layer in result.layers)
    assert kl(source, tmp_path / "out") < 0.2
