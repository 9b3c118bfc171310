"""What a checkpoint computes when its weights are dequantized, in fp32, and how far a server's answers are from it.

Knows no server and no recipe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.evaluate.quality import model_logits

HAIR = 0.15
"""Logits: what bfloat16 may tip."""


def load(folder: Path) -> Any:
    """The whole model in fp32, dequantized where it is quantized."""
    return model_logits.WholeModel(folder).model


def log_probabilities(model: Any, tokens: list[int]) -> list[float]:
    """Of each token but the first, given those before it."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1]
        values: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    return values


def apart(one: list[float], other: list[float]) -> float:
    """Mean absolute difference, nats."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def follows(model: Any, prompt: list[int], answer: list[int]) -> int:
    """Tokens of a greedy answer that are the model's own best, up to a hair."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return sum(bool(row[token] > row.max() - HAIR) for row, token in zip(logits, answer, strict=True))
