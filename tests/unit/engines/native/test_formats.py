"""The written formats: tensors and configs as the reading libraries expect them, bit for bit back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.native.files import awq_format, schemes
from backend.engines.native.methods.rounding import compress, parameters, rounded, snapped
from backend.layered.dequantize import dequantize_awq, unpack_awq
from backend.layered.rounded_inputs import nearest_fp4
from tests.matrices import randn


def w4(symmetric: bool, group: int | None = 32) -> Any:
    import torch

    return schemes.weight_only(4, group, symmetric=symmetric, dtype=torch.bfloat16)


def by_the_loader(packed: Any) -> Any:
    """vLLM 0.32.0, layers/quantization/auto_awq.py, _convert_awq_to_standard_format: the unpacking there, line for
    line."""
    import torch

    reverse_order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    unpacked = (packed.unsqueeze(-1) >> shifts) & 15
    return unpacked[:, :, reverse_order].reshape(len(packed), -1)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), eights=st.integers(1, 4))
def test_packing_is_what_the_loader_unpacks_and_loses_nothing(seed: int, rows: int, eights: int) -> None:
    import torch

    numbers = torch.randint(0, 16, (rows, 8 * eights), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    packed = awq_format.pack(numbers)
    assert packed.dtype == torch.int32
    assert packed.shape == (rows, eights)
    assert torch.equal(by_the_loader(packed), numbers)
    assert torch.equal(unpack_awq(packed), numbers)


def test_the_first_eight_outputs_lie_in_the_order_of_the_kernel() -> None:
    import torch

    word = int(awq_format.pack(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0]]))[0, 0])
    assert [(word >> 4 * place) & 15 for place in range(8)] == [1, 3, 5, 7, 2, 4, 6, 0]


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), symmetric=st.booleans(), group=st.sampled_from([32, 64]))
def test_an_autoawq_weight_reads_back_as_what_was_rounded(seed: int, symmetric: bool, group: int) -> None:
    import torch

    rounding, weight = w4(symmetric, group), randn(16, 64, seed=seed)
    grid = parameters(weight, rounding)
    values = snapped(weight, grid, rounding)
    tensors = awq_format.compress(values, grid, torch.bfloat16)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "qweight": (torch.int32, (64, 2)),
        "qzeros": (torch.int32, (64 // group, 2)),
        "scales": (torch.bfloat16, (64 // group, 16)),
    }
    assert torch.equal(dequantize_awq(**tensors), values)


def test_the_autoawq_config_names_version_and_what_stays() -> None:
    assert awq_format.quantization_config(w4(False), ["lm_head"]) == {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "modules_to_not_convert": ["lm_head"],
    }


ROUNDINGS: dict[str, Any] = {
    "w4a16": lambda: w4(True),
    "w4a16 asymmetric": lambda: w4(False),
    "w8a16": lambda: schemes.weight_only(8, None, symmetric=True, dtype=__import__("torch").bfloat16),
    "int8": lambda: schemes.int8("dynamic"),
    "int8 static": lambda: schemes.int8("static"),
    "fp8": lambda: schemes.fp8("dynamic"),
    "fp8 static": lambda: schemes.fp8("static"),
    "fp8 in blocks": schemes.fp8_block,
    "nvfp4": lambda: schemes.nvfp4("dynamic"),
    "nvfp4 weights": lambda: schemes.nvfp4("none"),
    "mxfp4": schemes.mxfp4,
    "mxfp8": schemes.mxfp8,
    "w4a8 with fp8": lambda: schemes.w4a8_fp8(__import__("torch").bfloat16, reordered=True),
}


WIDE = tuple(ROUNDINGS)[-6:]
"""Formats with groups of their own, tried on larger matrices."""


@pytest.mark.parametrize("name", ROUNDINGS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), spread=st.sampled_from([1e-4, 1.0, 300.0]))
def test_every_scheme_reads_back_as_what_was_scored(name: str, seed: int, spread: float) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor

    rounding, weight = ROUNDINGS[name](), randn(128, 256, seed=seed) * spread
    weight[3] = 0  # of every group of this row the range is empty
    tensors = compress(weight, rounding)
    stored = {k: v.float() if k == "weight_scale" else v for k, v in tensors.items()}
    back = BaseCompressor.get_value_from_registry(rounding.format).decompress(stored, rounding.scheme)["weight"]
    # FP4's decompressor gives bfloat16, in which an NVFP4 number with its two scales is not exact.
    assert torch.equal(back, rounded(weight, rounding).to(back.dtype))
    assert (back.float() - weight).abs().max() < 0.2 * weight.abs().max()


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_fp4_rounds_ties_and_ends_as_the_library_does(seed: int) -> None:
    import torch
    from compressed_tensors.quantization.quant_args import FP4_E2M1_DATA

    plain = FP4_E2M1_DATA.cast_to_fp4._torchdynamo_orig_callable  # not compiled
    halves = torch.arange(-32, 33) / 4
    values = torch.cat([halves, randn(64, seed=seed) * 3])
    assert torch.equal(nearest_fp4(values), plain(values.clamp(-6, 6)))


def test_fused_matrices_share_the_global_scale_of_nvfp4() -> None:
    import torch

    from backend.engines.native.methods.nearest import Nearest

    rounding = ROUNDINGS["nvfp4"]()
    small, large = randn(32, 64), randn(32, 64, seed=1) * 40
    grids = Nearest(rounding, lambda values, grid: {})._grids([small, large])
    both = [compress(weight, rounding, grid) for weight, grid in zip((small, large), grids, strict=True)]
    assert torch.equal(both[0]["weight_global_scale"], both[1]["weight_global_scale"])
    assert float(both[0]["weight_global_scale"]) == pytest.approx(448 * 6 / float(large.abs().max()))


@pytest.mark.parametrize(
    ("name", "form", "weights", "inputs", "tensors"),
    [
        (
            "w8a16",
            "pack-quantized",
            ("int", 8, "channel"),
            None,
            {"weight_packed": (32, 16), "weight_scale": (32, 1), "weight_shape": (2,)},
        ),
        (
            "int8",
            "int-quantized",
            ("int", 8, "channel"),
            ("token", True),
            {"weight": (32, 64), "weight_scale": (32, 1)},
        ),
        (
            "int8 static",
            "int-quantized",
            ("int", 8, "channel"),
            ("tensor", False),
            {"weight": (32, 64), "weight_scale": (32, 1)},
        ),
        (
            "fp8",
            "float-quantized",
            ("float", 8, "channel"),
            ("token", True),
            {"weight": (32, 64), "weight_scale": (32, 1)},
        ),
        (
            "fp8 static",
            "float-quantized",
            ("float", 8, "tensor"),
            ("tensor", False),
            {"weight": (32, 64), "weight_scale": (1,)},
        ),
        (
            "fp8 in blocks",
            "float-quantized",
            ("float", 8, "block"),
            ("group", True),
            {"weight": (128, 256), "weight_scale": (1, 2)},
        ),
        (
            "nvfp4",
            "nvfp4-pack-quantized",
            ("float", 4, "tensor_group"),
            ("tensor_group", "local"),
            {"weight_packed": (128, 128), "weight_scale": (128, 16), "weight_global_scale": (1,)},
        ),
        (
            "nvfp4 weights",
            "nvfp4-pack-quantized",
            ("float", 4, "tensor_group"),
            None,
            {"weight_packed": (128, 128), "weight_scale": (128, 16), "weight_global_scale": (1,)},
        ),
        (
            "mxfp4",
            "mxfp4-pack-quantized",
            ("float", 4, "group"),
            ("group", True),
            {"weight_packed": (128, 128), "weight_scale": (128, 8)},
        ),
        (
            "mxfp8",
            "mxfp8-quantized",
            ("float", 8, "group"),
            ("group", True),
            {"weight": (128, 256), "weight_scale": (128, 8)},
        ),
        (
            "w4a8 with fp8",
            "pack-quantized",
            ("int", 4, "group"),
            ("token", True),
            {"weight_packed": (128, 32), "weight_scale": (128, 2), "weight_shape": (2,)},
        ),
    ],
)
def test_config_and_tensors_of_each_scheme(name: str, form: str, weights: Any, inputs: Any, tensors: Any) -> None:
    rounding = ROUNDINGS[name]()
    document = schemes.quantization_config(rounding, ["lm_head"])
    group = document["config_groups"]["group_0"]
    assert (document["quant_method"], document["format"], document["ignore"]) == (
        "compressed-tensors",
        form,
        ["lm_head"],
    )
    assert (group["weights"]["type"], group["weights"]["num_bits"], group["weights"]["strategy"]) == weights
    value = group.get("input_activations")
    assert (value and (value["strategy"], value["dynamic"])) == inputs
    shape = (128, 256) if name in WIDE else (32, 64)
    assert {key: tuple(tensor.shape) for key, tensor in compress(randn(*shape), rounding).items()} == tensors
    assert "sparsity_config" not in document


def test_the_cache_alone_needs_no_weight_scheme() -> None:
    document = schemes.quantization_config(None, [], kv_cache=True)
    assert document["config_groups"] == {}
    cache = document["kv_cache_scheme"]
    assert (cache["type"], cache["num_bits"], cache["strategy"], cache["dynamic"]) == ("float", 8, "tensor", False)
    assert "kv_cache_scheme" not in schemes.quantization_config(ROUNDINGS["fp8"](), [])


def test_the_table_of_families_is_the_engines_own() -> None:
    from backend.domain.recipe.capability_table import NATIVE_FAMILIES
    from backend.layered.families import FAMILIES

    assert set(FAMILIES) == NATIVE_FAMILIES


def test_every_method_that_a_recipe_may_name_has_a_pipeline() -> None:
    from backend.domain.recipe import methods
    from backend.engines.native.methods import pipelines

    assert set(pipelines.makers()) - {None} == set(methods.QUANTIZE) - {methods.GGUF}  # llama.cpp makes that one
