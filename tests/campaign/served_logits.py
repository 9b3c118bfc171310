"""Logits of stored checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.families import dense

WINDOW = 512
LARGEST = {"int8": 127.5, "fp8": 448.0}
"""What the largest input of a token becomes: half of INT8's range of 255 steps, the largest number of FP8 E4M3."""


EXPERTS = {"mixtral", "qwen2-moe"}


def command(home: Path, *arguments: object) -> dict[str, Any]:
    """Run `whetstone ARGUMENTS --json` as a process, and return the document that it prints."""
    run = subprocess.run(
        [sys.executable, "-m", "backend.cli.main", *map(str, arguments), "--json"],
        env={**os.environ, "WHETSTONE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document


def rounded(inputs: Any, kind: str) -> Any:
    """Round each token [.., features] to INT8 or FP8 with a scale of its own, and back."""
    import torch

    scale = inputs.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST[kind]
    if kind == "int8":
        return (inputs / scale).round().clamp(-128, 127) * scale
    return (inputs / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def looped_experts(fused: Any, kind: str) -> Any:
    """An experts module that computes one expert after the other and rounds what each linear of it reads."""
    import torch

    class Looped(torch.nn.Module):
        def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            result = torch.zeros_like(hidden)
            for number in range(fused.num_experts):
                token, place = torch.where(chosen == number)
                gate, up = (rounded(hidden[token], kind) @ fused.gate_up_proj[number].T).chunk(2, -1)
                down = rounded(fused.act_fn(gate) * up, kind) @ fused.down_proj[number].T
                result.index_add_(0, token, down * weights[token, place, None])
            return result

    return Looped()


def quantized_logits(saved: Path, folder: Path, shape: str, kind: str, tokens: Any) -> Any:
    """The logits of a checkpoint whose linears round their inputs: its weights dequantized, then transformers in
    fp32."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    model = AutoModelForCausalLM.from_pretrained(dense(saved, folder), dtype=torch.float32).eval()
    unrounded = ("lm_head", "mlp.shared_expert_gate", "mlp.gate")
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear | Conv1D) and not name.endswith(unrounded):
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], kind), *inputs[1:]))
        if shape in EXPERTS and name.endswith(".experts"):
            model.set_submodule(name, looped_experts(module, kind))
    with torch.no_grad():
        return model(tokens, use_cache=False).logits
