"""Every method of the native engine end to end on a tiny model: function kept, files as promised, patterns and masks
held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.methods import QUANTIZE
from backend.engines.base import Pruning
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import CompressedTensorsSource, dequantize_awq
from tests.helpers.quantizing import GROUPS, METHODS, run
from tests.tiny import TEXT, tiny_llama


def kl(model: Path, candidate: Path) -> float:
    return float(score(model, candidate, TEXT, length=64, progress=NoProgress())["kl_mean"])


def config(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.parametrize("name", METHODS)
def test_the_function_is_kept(model: Path, tmp_path: Path, name: str) -> None:
    options, most = METHODS[name]
    result = run(model, tmp_path / "out", **options)
    # The tiny model's keys and values have 64 outputs: formats in blocks of 128 leave them and the queries 16-bit.
    method = QUANTIZE.get(options["method"])
    assert len(result.layers) == (8 if method is not None and method.multiple == 128 else 14)
    assert all(0 <= layer["relative_error"] < 0.6 for layer in result.layers)
    assert kl(model, tmp_path / "out") < most


def test_rounding_to_nearest_reads_no_text_and_reports_the_error_of_the_weights(model: Path, tmp_path: Path) -> None:
    result = run(model, tmp_path / "out", method="rtn", calibration_texts=[], **GROUPS)
    assert result.calibration["tokens"] == 0
    name = "model.layers.1.mlp.down_proj"
    remaining, created = tensors(model)[f"{name}.weight"].float(), weights_of(tmp_path / "out", f"{name}.weight")
    reported = next(layer for layer in result.layers if layer["name"] == name)
    assert reported["relative_error"] == pytest.approx(
        float((remaining - created).square().sum() / remaining.square().sum()) ** 0.5, rel=1e-3
    )
    assert kl(model, tmp_path / "out") < METHODS["rtn"][1]
    with pytest.raises(InvalidWorkload):
        run(model, tmp_path / "clipped", method="rtn", calibration_texts=[], clip=True, **GROUPS)


def weights_of(folder: Path, name: str) -> Any:
    """As the checkpoint stands for."""
    ((_, result),) = CompressedTensorsSource(folder).read([name])
    return result


def test_gptq_loses_less_than_rounding_in_every_layer(model: Path, tmp_path: Path) -> None:
    result = run(model, tmp_path / "out", method="gptq", act_order=True, **GROUPS)
    assert all(layer["relative_error"] <= layer["rtn_relative_error"] * 1.0001 for layer in result.layers)
    assert sum(layer["relative_error"] / layer["rtn_relative_error"] for layer in result.layers) < 0.9 * 14


def test_an_autoawq_checkpoint_holds_what_the_compressed_tensors_one_holds(model: Path, tmp_path: Path) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor

    from backend.engines.native.files import schemes

    run(model, tmp_path / "awq", method="awq", clip=True, format="autoawq", **GROUPS)
    run(model, tmp_path / "ct", method="awq", clip=True, **GROUPS)
    awq, plain = tensors(tmp_path / "awq"), tensors(tmp_path / "ct")
    rounding = schemes.weight_only(4, 32, symmetric=False, dtype=torch.bfloat16)
    decompress = BaseCompressor.get_value_from_registry("pack-quantized").decompress
    modules = {name.removesuffix(".qweight") for name in awq if name.endswith(".qweight")}
    assert len(modules) == 14
    for module in modules:
        mine = dequantize_awq(*(awq[f"{module}.{key}"] for key in ("qweight", "qzeros", "scales")))
        stored = {key: plain[f"{module}.{key}"] for key in ("weight_packed", "weight_zero_point", "weight_shape")}
        stored["weight_scale"] = plain[f"{module}.weight_scale"].float()
        assert torch.equal(mine, decompress(stored, rounding.scheme)["weight"])
    assert config(tmp_path / "awq")["quantization_config"]["quant_method"] == "awq"
    assert all(torch.equal(awq[name], plain[name]) for name in set(awq) & set(plain))


@pytest.mark.parametrize("pattern", ["2:4", "4:8"])
@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_pruned_alone_it_is_a_plain_checkpoint_with_the_pattern_in_every_linear(
    model: Path, tmp_path: Path, method: Any, pattern: Any
) -> None:
    result = run(model, tmp_path / "out", method=None, pruning=Pruning(method=method, pattern=pattern))
    assert "quantization_config" not in config(tmp_path / "out")
    keep, subject = map(int, pattern.split(":"))
    stored = {name: tensor for name, tensor in tensors(tmp_path / "out").items() if "_proj" in name}
    assert len(stored) == 14
    for tensor in stored.values():
        assert bool(((tensor != 0).view(len(tensor), -1, subject).sum(-1) == keep).all())
    assert [layer["zeros"] for layer in result.layers] == [0.5] * 14
    assert result.bytes_after == pytest.approx(result.bytes_before, rel=0.01)


@pytest.mark.parametrize("method", ["awq", "gptq", "w8a8"])
def test_quantization_after_pruning_keeps_the_zeros(model: Path, tmp_path: Path, method: str) -> None:
    from transformers import AutoModelForCausalLM

    options = {"bits": 8} if method == "w8a8" else {"clip": True, **GROUPS}
    run(model, tmp_path / "out", method=method, pruning=Pruning(method="wanda", pattern="2:4"), **options)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded(loaded.dummy_inputs["input_ids"])  # the library turns integers back into weights at the first use
    for layer in loaded.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.down_proj):
            assert bool(((linear.weight == 0).view(len(linear.weight), -1, 4).sum(-1) >= 2).all())


def test_cache_scales_are_the_largest_keys_after_rotation_and_the_largest_values(model: Path, tmp_path: Path) -> None:
    """Against the cache that transformers itself keeps when the whole model runs on the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from backend.engines.native.calibration import sample_tokens

    run(model, tmp_path / "out", method="kv_cache")
    tokens = sample_tokens(model, [TEXT], 8, 32, 0)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        cache = reference(tokens, use_cache=True).past_key_values
    stored = tensors(tmp_path / "out")
    for number, layer in enumerate(cache.layers):
        for name, values in (("k_scale", layer.keys), ("v_scale", layer.values)):
            scale = stored[f"model.layers.{number}.self_attn.{name}"]
            assert scale.shape == (1,)
            assert float(scale) == pytest.approx(float(values.abs().max()) / 448, rel=1e-2)
    assert config(tmp_path / "out")["quantization_config"]["kv_cache_scheme"]["type"] == "float"
    assert set(stored) - set(tensors(model)) == {
        f"model.layers.{n}.self_attn.{kind}_scale" for n in (0, 1) for kind in "kv"
    }


@pytest.mark.parametrize("method", ["w8a8", "fp8"])
def test_static_scales_are_shared_by_linears_of_one_input(model: Path, tmp_path: Path, method: str) -> None:
    run(model, tmp_path / "out", method=method, bits=8, activations="static")
    stored = tensors(tmp_path / "out")
    scales = [float(stored[f"model.layers.0.self_attn.{name}.input_scale"]) for name in ("q_proj", "k_proj", "v_proj")]
    assert scales[0] == scales[1] == scales[2] > 0
    if method == "fp8":
        weights = [float(stored[f"model.layers.0.mlp.{name}.weight_scale"]) for name in ("gate_proj", "up_proj")]
        assert weights[0] == weights[1]


def test_the_rounding_of_an_fp8_cache_is_scored(model: Path, tmp_path: Path) -> None:
    """E4M3 has three bits of mantissa: half a step is a sixteenth; beyond the largest number values stay there."""
    import torch

    from backend.evaluate.quality import quantized_reference as quality_cache

    run(model, tmp_path / "out", method="kv_cache")
    assert kl(model, tmp_path / "out") > 1e-6
    scale = torch.tensor([0.01])
    keys, values = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8) * 100
    rounded = quality_cache.round_to_fp8(keys, values, {"k_scale": scale, "v_scale": scale})
    for before, after in zip((keys, values), rounded, strict=True):
        inside = before.abs() <= 448 * scale
        assert ((after - before).abs()[inside] <= before.abs()[inside] / 16 + 0.01 * 2**-10).all()
        torch.testing.assert_close(after[~inside], before[~inside].sign() * 4.48)
