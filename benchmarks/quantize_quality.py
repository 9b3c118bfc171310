"""How far a quantized model of benchmarks/quantize.py is from its original, window by window of text held out."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backend.catalog.text import calibration_text
from backend.catalog.text.held_out_text import Document
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality import scoring
from backend.settings import ASSETS

if TYPE_CHECKING:
    import torch

LENGTH, WINDOWS = 512, 70
"""As many windows as the bundled held-out text has."""
SPLIT = ASSETS / "starter" / "training" / "corpus.py"


def window_kls(
    original: Path, candidate: Path, windows: int = WINDOWS, text: str | Sequence[Document] | None = None
) -> tuple[list[float], float, float]:
    """Mean KL(original || candidate) of each window, nats a token, in order; perplexity of the candidate and of the
    original.

    The same windows for every engine, so that differences can be paired: of `text`, at most as many as it has, else
    those of the bundled held-out text first.
    """
    tokens = (
        held_out(original, windows) if text is None else scoring.window_tokens(original, text, LENGTH, None)[:windows]
    )
    divergences = scoring.positions(original, candidate, tokens, NoProgress())
    before, after, kl, _ = divergences.mean(1).T.tolist()
    return kl, math.exp(math.fsum(after) / len(after)), math.exp(math.fsum(before) / len(before))


def held_out(model_dir: Path, windows: int) -> torch.Tensor:
    """Token ids [windows, length]; what the bundled text lacks is drawn from the other files on its side of the split.

    The models are trained on the bundled calibration text, which comes from the other side (assets/starter/README.md).
    """
    import torch

    bundled = calibration_text.HELD_OUT.read_text(encoding="utf-8")
    window_tokens = scoring.window_tokens(model_dir, bundled, LENGTH, None)
    if len(window_tokens) < windows:
        others = [text for text in _texts() if text[:200] not in bundled]
        text = "\n\n".join(random.Random(2).sample(others, len(others)))
        window_tokens = torch.cat([window_tokens, scoring.window_tokens(model_dir, text, LENGTH, None)])
    if len(window_tokens) < windows:
        raise ValueError(f"{windows} windows were asked for, the held-out text has {len(window_tokens)}")
    return window_tokens[:windows]


def _texts() -> list[str]:
    """Held-out files, without those that are near copies of calibration text
    (assets/starter/training/extract_texts.py)."""
    spec = importlib.util.spec_from_file_location("corpus", SPLIT)
    assert spec and spec.loader
    corpus = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpus)
    return [text for text in corpus.texts(held_out=True) if "class IncrementalEncoder(codecs" not in text]
