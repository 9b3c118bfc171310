"""The table of kernels says what vLLM's own choosers say, over a grid of shapes, groups, types and capabilities."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.kernels import kernel_choice
from backend.domain.kernels.conditions import CHANNEL, Chip, Layer, StoredLayout
from backend.settings import CHECKOUT

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
CHOOSER = CHECKOUT / "tests/vllm_chooser.py"
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
GROUPS = (CHANNEL, 8, 16, 32, 64, 96, 128, 256, 384, 768)
SHAPES = ((768, 768, 768), (768, 1152, 768), (384, 768, 768), (96, 64, 768), (768, 100, 768), (512, 1536, 4096))
"""Inputs and outputs of a device, and the inputs before the cut."""
INTEGERS = (
    *(StoredLayout("wNa16", 4, group, zero_points=True) for group in GROUPS),
    *(StoredLayout("wNa16", bits, group) for group in GROUPS for bits in (4, 8)),
)
BOTH_SIDES = (
    StoredLayout("int8", activations="dynamic"),
    StoredLayout("int8", activations="static"),
    StoredLayout("fp8", activations="dynamic"),
    StoredLayout("fp8", activations="static"),
)
FORMATS = (
    StoredLayout("fp8-block", activations="dynamic"),
    StoredLayout("nvfp4", 4, 16, activations="dynamic"),
    StoredLayout("mxfp4", 4, 32, activations="dynamic"),
    StoredLayout("mxfp8", 8, 32, activations="dynamic"),
    StoredLayout("w4a8-fp8", 4, 128, activations="dynamic"),
)
Case = tuple[StoredLayout, Layer, Chip]

pytestmark = [pytest.mark.vllm, pytest.mark.campaign]


def cases() -> Iterator[Case]:
    """Linears everywhere, and experts on GPUs, which have no other 16-bit inputs than these."""
    gpus = [Chip("cuda", capability, "bfloat16") for capability in CAPABILITIES]
    chips = [*gpus, Chip("cpu"), Chip("cpu", None, "float16")]
    chips += [Chip("cuda", capability, "float16") for capability in CAPABILITIES]
    for inputs, outputs, whole in SHAPES:
        layouts = [layout for layout in INTEGERS if layout.group <= whole]
        linears = itertools.product([*layouts, *BOTH_SIDES, *FORMATS], [Layer("up", inputs, outputs, whole)], chips)
        # vLLM asks for the kernels of INT4 with FP8 inputs on Hopper alone (_is_fp8_w4a8_sm90).
        yield from (case for case in linears if case[0].scheme != "w4a8-fp8" or case[2].capability == (9, 0))
        yield from itertools.product(layouts, [Layer("experts", inputs, outputs, whole, experts=True)], gpus)


def kernel_case(layout: StoredLayout, layer: Layer, chip: Chip) -> dict[str, Any]:
    """The case for vLLM."""
    sizes = {"inputs": layer.inputs, "outputs": layer.outputs, "all_inputs": layer.all_inputs, "group": layout.group}
    where = {"capability": chip.capability, "dtype": chip.dtype, "experts": layer.experts}
    return {**sizes, **where, "scheme": layout.scheme, "type": layout.type, "static": layout.activations == "static"}


def test_the_table_takes_the_kernel_that_vllm_takes() -> None:
    every = list(cases())
    sent = json.dumps([kernel_case(*case) for case in every])
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([PYTHON, CHOOSER], input=sent, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr[-2000:]
    answer = json.loads(result.stdout.splitlines()[-1])
    ours = [kernel.name if (kernel := kernel_choice.preferred_kernel(*case)) else None for case in every]
    both = zip(every, ours, answer["kernels"], strict=True)
    apart = [(case, mine, its) for case, mine, its in both if mine != its]
    assert not apart, (len(apart), apart[:5])
    assert len(Counter(ours)) >= 28  # every kernel that a layout of ours can meet, and refusals
    # What the table says the processor's 4-bit kernel computes right, it does.
    assert len(answer["errors"]) == 10 and all(error < 0.01 for error in answer["errors"].values()), answer["errors"]
    layer = Layer("up", 192, 64, 192)
    assert all(
        kernel_choice.choose_kernel(StoredLayout("wNa16", 4, int(size)), layer, Chip("cpu")).kernel
        for size in answer["errors"]
    )
