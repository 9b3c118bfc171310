"""vLLM's own scheme selection takes each format that the engine writes, and has a parameter for each stored tensor."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.layered.weight_source import WeightSource
from backend.settings import CHECKOUT
from tests.families import tiny
from tests.helpers.multimodal import tiny_multimodal
from tests.helpers.quantizing import GROUPS, run
from tests.tiny import tiny_llama

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
READER = CHECKOUT / "tests/vllm_layouts.py"
LINEARS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
ADA, HOPPER, BLACKWELL = [8, 9], [9, 0], [10, 0]
SCHEMES: dict[str, tuple[dict[str, Any], list[list[int]], str]] = {
    "int4 in groups": ({"method": "rtn", **GROUPS}, [ADA, HOPPER], "CompressedTensorsWNA16"),
    "int8": ({"method": "w8a8", "bits": 8}, [ADA, HOPPER], "CompressedTensorsW8A8Int8"),
    "fp8": ({"method": "fp8", "bits": 8}, [ADA, HOPPER], "CompressedTensorsW8A8Fp8"),
    "fp8 in blocks": ({"method": "fp8_block", "bits": 8}, [ADA, HOPPER, BLACKWELL], "CompressedTensorsW8A8Fp8"),
    "mxfp8": ({"method": "mxfp8", "bits": 8}, [ADA, BLACKWELL], "CompressedTensorsW8A8Mxfp8"),
    "nvfp4": ({"method": "nvfp4", "bits": 4}, [ADA, HOPPER, BLACKWELL], "CompressedTensorsW4A4Fp4"),
    "nvfp4 weights": ({"method": "nvfp4", "bits": 4, "activations": "none"}, [ADA], "CompressedTensorsW4A4Fp4"),
    "mxfp4": ({"method": "mxfp4", "bits": 4}, [ADA, BLACKWELL], "CompressedTensorsW4A4Mxfp4"),
    "w4a8 with fp8": ({"method": "w4a8_fp8", "bits": 4}, [HOPPER], "CompressedTensorsW4A8Fp8"),
}

INT4, FP8 = "CompressedTensorsWNA16", "CompressedTensorsW8A8Fp8"
NAMED: dict[str, tuple[Callable[[Path], Path], dict[str, Any], dict[str, str | None]]] = {
    "qwen2.5-vl": (
        lambda folder: tiny_multimodal(folder, "qwen2_5_vl"),
        {"method": "awq", **GROUPS},
        {
            "language_model.model.layers.0.self_attn.qkv_proj": INT4,
            "language_model.model.layers.1.mlp.down_proj": INT4,
            "language_model.lm_head": None,
            "visual.blocks.0.attn.qkv": None,
            "visual.merger.mlp.0": None,
        },
    ),
    "llava": (
        lambda folder: tiny_multimodal(folder, "llava"),
        {"method": "fp8", "bits": 8},
        {
            "language_model.model.layers.0.mlp.gate_up_proj": FP8,
            "vision_tower.vision_model.encoder.layers.0.mlp.fc1": None,
            "multi_modal_projector.linear_1": None,
        },
    ),
    "experts alone": (
        lambda folder: tiny(folder, "qwen3-moe"),
        {"method": "rtn", "outside_experts": "16-bit", **GROUPS},
        {
            "model.layers.0.self_attn.qkv_proj": None,
            "model.layers.0.self_attn.o_proj": None,
            "model.layers.0.mlp.gate": None,
            "model.layers.0.mlp.experts.0.down_proj": INT4,
        },
    ),
    "experts beside FP8": (
        lambda folder: tiny(folder, "mixtral"),
        {"method": "rtn", "outside_experts": "fp8", **GROUPS},
        {
            "model.layers.0.self_attn.qkv_proj": FP8,
            "model.layers.1.self_attn.o_proj": FP8,
            "model.layers.0.block_sparse_moe.gate": None,
            "model.layers.0.block_sparse_moe.experts.0.w1": INT4,
        },
    ),
}
"""A model, how it is quantized, and the scheme of linears by the names that vLLM gives them."""

pytestmark = [pytest.mark.vllm, pytest.mark.campaign]


def case(folder: Path, capability: list[int]) -> dict[str, Any]:
    """The linears of a checkpoint's first layer for vLLM. Queries stay 16-bit in formats of 128 x 128 blocks."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    headers = WeightSource(folder).tensors
    linears = {}
    for linear in LINEARS:
        name = f"model.layers.0.{linear}"
        tensors = {
            key.removeprefix(f"{name}."): header for key, header in headers.items() if key.startswith(f"{name}.")
        }
        sizes = {"mlp.gate_proj": (128, 256), "mlp.down_proj": (256, 128)}.get(linear, (128, 128))
        linears[name] = {"inputs": sizes[0], "outputs": sizes[1], "tensors": tensors}
    return {"config": config, "capability": capability, "linears": linears}


def named_case(folder: Path, name: str) -> dict[str, Any]:
    """The linears of a model with parts that are treated differently, without their tensors."""
    make, options, schemes = NAMED[name]
    model = make(folder / f"{name} original")
    run(model, folder / name, **options)
    config = json.loads((folder / name / "config.json").read_text())["quantization_config"]
    linears = {linear: {"tensors": {}} for linear in schemes}
    return {"config": config, "capability": HOPPER, "linears": linears}


def test_each_format_is_the_scheme_that_vllm_takes_for_it_on_each_gpu(tmp_path: Path) -> None:
    # 1. Write a tiny model in each format.
    model = tiny_llama(tmp_path / "llama")
    cases, expected = [], []
    for name, (options, capabilities, scheme) in SCHEMES.items():
        run(model, tmp_path / name, **options)
        cases += [case(tmp_path / name, capability) for capability in capabilities]
        expected += [(name, scheme)] * len(capabilities)
    cases.append(case(tmp_path / "w4a8 with fp8", ADA))
    named = [named_case(tmp_path, name) for name in NAMED]
    # 2. Let vLLM read their configurations.
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    sent = json.dumps(cases + named)
    result = subprocess.run([PYTHON, READER], input=sent, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr[-2000:]
    every = json.loads(result.stdout.splitlines()[-1])
    answers, refused, by_name = every[: len(expected)], every[len(expected)], every[len(expected) + 1 :]
    # 3. Every linear is read, or excepted where the engine left it 16-bit; every stored tensor has a place.
    for (name, scheme), answer in zip(expected, answers, strict=True):
        assert "error" not in answer, (name, answer)
        wide = SCHEMES[name][0]["method"] in {"fp8_block", "w4a8_fp8"}
        for linear, reading in answer["linears"].items():
            sixteen_bit = wide and linear.endswith("q_proj")
            assert reading["scheme"] == (None if sixteen_bit else scheme), (name, linear, reading)
            assert not reading["unread"], (name, linear, reading)
    assert "No compressed-tensors compatible scheme" in refused["error"]  # INT4 with FP8 inputs is for Hopper alone
    # 4. Parts that are carried are excepted under vLLM's names; linears outside of experts have their own scheme.
    for (name, (_, _, schemes)), answer in zip(NAMED.items(), by_name, strict=True):
        assert {linear: reading["scheme"] for linear, reading in answer["linears"].items()} == schemes, name
