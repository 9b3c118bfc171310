"""Draws calibration sequences from text, by the model's own tokenizer. Knows no model weights and no quantization."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import InvalidWorkload
from backend.domain.jobs.progress import Progress
from backend.domain.recipe import calibration_text
from backend.engines.base import QuantizeRequest
from backend.layered import tokenizers, weight_source

if TYPE_CHECKING:
    import torch


def sample_tokens(model_dir: Path, texts: Iterable[str], samples: int, length: int, seed: int) -> torch.Tensor:
    """Draw up to `samples` windows [samples, length] of token ids, without overlap, from all texts joined end to end.

    Each begins as the model's tokenizer begins a text: what Gemma computes without that token is not what is served.

    Raises InvalidWorkload when the text is shorter than one window, InvalidModel when the tokenizer is another model's.
    """
    windows, order = _shuffled(model_dir, texts, length, seed)
    return windows[order[:samples].sort().values]


def draw_tokens(request: QuantizeRequest, samples: int, progress: Progress) -> torch.Tensor:
    """Draw the tokens of a request [samples, length]; warn if the text gives fewer. With 0 samples no text is read."""
    import torch

    if not samples:
        return torch.empty(0, request.length, dtype=torch.long)
    tokens = sample_tokens(request.model_dir, request.calibration_texts, samples, request.length, request.seed)
    if len(tokens) < samples:
        progress.warn(f"The calibration text gives {len(tokens)} sequences, fewer than {samples}.")
    return tokens


def divide_tokens(
    model_dir: Path, texts: Iterable[str], samples: int, length: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the windows [samples, length] that `sample_tokens` draws and those [rest, length] that it leaves, possibly
    none, both in random order. Raises as it does."""
    windows, order = _shuffled(model_dir, texts, length, seed)
    return windows[order[:samples]], windows[order[samples:]]


def _shuffled(model_dir: Path, texts: Iterable[str], length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut the text into windows [windows, length]; return them, and their numbers in random order [windows]."""
    import torch

    # 1. Join all texts to one stream of token ids [tokens], each text ended by the end token.
    tokenizer = tokenizers.load(model_dir)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    begin = torch.tensor(tokenizers.beginning_tokens(tokenizer), dtype=torch.long)
    tokens: list[int] = []
    for text in texts:
        tokens += [*_encoded(tokenizer, text), *end]
    stream = torch.tensor(tokens, dtype=torch.long)
    # 2. Cut it into windows that leave room for the tokens every text begins with.
    length = weight_source.within_positions(model_dir, length)
    own = length - len(begin)
    windows = len(stream) // own
    if windows == 0:
        raise InvalidWorkload(
            f"The calibration text is only {len(stream)} tokens, shorter than one sequence of {length}: give more text."
        )
    calibration_text.check_vocabulary(json.loads((model_dir / "config.json").read_bytes()), int(stream.max()))
    # 3. Shuffle by the seed, and put the beginning before each window: [windows, length].
    order = torch.randperm(windows, generator=torch.Generator().manual_seed(seed))
    return torch.cat([begin.expand(windows, -1), stream[: windows * own].view(windows, own)], 1), order


def _encoded(tokenizer: Any, text: str) -> list[int]:
    """Encode without special tokens; fast tokenizers skip the offsets, which take time."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids
    fast.no_truncation()
    fast.no_padding()
    fast_ids: list[int] = fast.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return fast_ids


def describe(tokens: torch.Tensor) -> dict[str, Any]:
    """Describe the calibration data for the result; `sha256` is over the 64-bit little-endian token ids."""
    digest = hashlib.sha256(tokens.contiguous().numpy().astype("<i8").tobytes()).hexdigest()
    return {"samples": tokens.shape[0], "length": tokens.shape[1], "tokens": tokens.numel(), "sha256": digest}
