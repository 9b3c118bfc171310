"""How far a quantized model of benchmarks/quantize.py is from its original, window by window of the held-out text."""

from __future__ import annotations

import math
from pathlib import Path

from backend.catalog import calibration_text
from backend.domain.progress import Silent
from backend.evaluate import quality

LENGTH, WINDOWS = 512, 96


def window_kls(original: Path, candidate: Path) -> tuple[list[float], float, float]:
    """Mean KL(original || candidate) of each window, nats a token, in order; perplexity of the candidate and of the original.

    The same windows, evenly spread over the held-out text, for every engine, so that differences can be paired.
    """
    tokens = quality.window_tokens(original, calibration_text.HELD_OUT.read_text(), LENGTH, WINDOWS)
    rows = quality.window_rows(original, candidate, tokens, Silent())
    before, after, kl, _ = zip(*rows, strict=True)
    return list(kl), math.exp(math.fsum(after) / len(after)), math.exp(math.fsum(before) / len(before))
