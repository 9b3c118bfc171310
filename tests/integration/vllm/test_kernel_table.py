"""The table of kernels says what vLLM's own choosers say, over a grid of shapes, groups, types and capabilities."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backend.domain.kernels import choose
from backend.domain.kernels.conditions import CHANNEL, Chip, Layer, Layout
from backend.settings import CHECKOUT

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
CHOOSER = CHECKOUT / "tests/vllm_chooser.py"
CAPABILITIES: tuple[tuple[int, int], ...] = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
GROUPS = (CHANNEL, 8, 16, 32, 64, 96, 128, 256, 384, 768)
SHAPES = ((768, 768, 768), (768, 1152, 768), (384, 768, 768), (96, 64, 768), (768, 100, 768), (512, 1536, 4096))
"""Inputs and outputs of a device, and the inputs before the cut."""
LAYOUTS = (
    *(Layout("wNa16", 4, group, zero_points=True) for group in GROUPS),
    *(Layout("wNa16", bits, group) for group in GROUPS for bits in (4, 8)),
    Layout("int8", activations="dynamic"),
    Layout("int8", activations="static"),
    Layout("fp8", activations="dynamic"),
    Layout("fp8", activations="static"),
)

pytestmark = pytest.mark.vllm


def cases() -> list[tuple[Layout, Layer, Chip]]:
    chips = [Chip("cpu"), Chip("cpu", None, "float16")]
    chips += [Chip("cuda", capability) for capability in CAPABILITIES]
    chips += [Chip("cuda", capability, "float16") for capability in CAPABILITIES]
    layers = [Layer("up", inputs, outputs, whole) for inputs, outputs, whole in SHAPES]
    return [case for case in itertools.product(LAYOUTS, layers, chips) if case[0].group <= case[1].all_inputs]


def asked(layout: Layout, layer: Layer, chip: Chip) -> dict[str, Any]:
    return {
        "scheme": layout.scheme,
        "type": layout.type,
        "group": layout.group,
        "static": layout.activations == "static",
        "inputs": layer.inputs,
        "outputs": layer.outputs,
        "all_inputs": layer.all_inputs,
        "capability": chip.capability,
        "dtype": chip.dtype,
    }


def test_the_table_takes_the_kernel_that_vllm_takes() -> None:
    every = cases()
    sent = json.dumps([asked(*case) for case in every])
    found = subprocess.run([PYTHON, CHOOSER], input=sent, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr[-2000:]
    theirs = json.loads(found.stdout.splitlines()[-1])
    ours = [kernel.name if (kernel := choose.preferred(*case)) else None for case in every]
    apart = [(case, mine, its) for case, mine, its in zip(every, ours, theirs, strict=True) if mine != its]
    assert not apart, (len(apart), apart[:5])
    assert len(Counter(theirs)) >= 9  # every kernel that a layout of ours can meet, and refusals
