"""Runs the original model over calibration text and keeps, for each group of linears, the Gram matrix of their input.

The cost of a candidate scale is then a product of small matrices, whatever the number of tokens. Knows no quantization.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import InvalidWorkload, WorkError
from backend.domain.progress import Progress

if TYPE_CHECKING:
    import torch

BATCH_TOKENS = 2048


WIDE_FEATURES = 16384
"""From here on the Gram matrix (4 x features^2 bytes) would cost more than a sample of the tokens themselves."""
WIDE_ROWS = 1024


@dataclass
class Gram:
    """Of an input X [tokens, features]: `matrix` X'X [features, features] and `total_abs`, column sums of |X| [features].

    With `wide`, `matrix` is a sample of the rows of X [rows, features] instead: the token form of the same loss.
    """

    matrix: torch.Tensor
    total_abs: torch.Tensor
    wide: bool = False

    def squared(self, error: torch.Tensor) -> float:
        """||X E'||^2 for a weight error E [out, features], over all tokens, or over the sampled rows of a wide input."""
        if self.wide:
            return float((self.matrix @ error.T).square().sum())
        return float(((error @ self.matrix) * error).sum())


def sample_tokens(model_dir: Path, texts: Iterable[str], samples: int, length: int, seed: int) -> torch.Tensor:
    """Up to `samples` windows [samples, length] of token ids that do not overlap, drawn from all texts joined end to end.

    Raises InvalidWorkload when the text is shorter than one window.
    """
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    encoded = (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts)
    stream = torch.tensor([token for ids in encoded for token in [*ids, *end]], dtype=torch.long)
    windows = len(stream) // length
    if windows == 0:
        raise InvalidWorkload(
            f"The calibration text is only {len(stream)} tokens, shorter than one sequence of {length}: give more text."
        )
    chosen = torch.randperm(windows, generator=torch.Generator().manual_seed(seed))[:samples].sort().values
    return stream[: windows * length].view(windows, length)[chosen]


def describe(tokens: torch.Tensor) -> dict[str, Any]:
    """What the result says of the calibration data; `sha256` is over the 64-bit little-endian token ids."""
    digest = hashlib.sha256(tokens.contiguous().numpy().astype("<i8").tobytes()).hexdigest()
    return {"samples": tokens.shape[0], "length": tokens.shape[1], "tokens": tokens.numel(), "sha256": digest}


def collect(model: Any, inputs: dict[str, str], tokens: torch.Tensor, progress: Progress) -> dict[str, Gram]:
    """Gram matrices by key of `inputs` (key -> path of the module whose input is meant), over `tokens` [samples, length].

    Raises WorkError, naming the module, when an activation is not finite.
    """
    import torch

    grams: dict[str, Gram] = {}
    stride = -(-tokens.numel() // WIDE_ROWS)
    hooks = [model.get_submodule(path).register_forward_pre_hook(_observer(grams, key, stride)) for key, path in inputs.items()]
    done = 0
    try:
        with torch.inference_mode():
            for batch in torch.split(tokens, max(1, BATCH_TOKENS // tokens.shape[1])):
                model.base_model(batch, use_cache=False)
                done += len(batch)
                progress.advance(done)
    finally:
        for hook in hooks:
            hook.remove()
    for key, gram in grams.items():
        if not bool(gram.matrix.isfinite().all()):
            raise WorkError(f"The input of {inputs[key]} is not finite on the calibration text: check the model's weights.")
    return grams


def _observer(grams: dict[str, Gram], key: str, stride: int) -> Callable[[Any, tuple[Any, ...]], None]:
    """A hook that adds a batch to the Gram of `key`; of a wide input every `stride`-th row is kept."""

    def observe(_module: Any, args: tuple[Any, ...]) -> None:
        import torch

        rows = args[0].flatten(0, -2).float()
        wide = rows.shape[1] > WIDE_FEATURES
        added = rows[::stride].clone() if wide else rows
        if key not in grams:
            grams[key] = Gram(added if wide else rows.T @ rows, rows.abs().sum(0), wide)
            return
        if wide:
            grams[key].matrix = torch.cat([grams[key].matrix, added])
        else:
            grams[key].matrix.addmm_(rows.T, rows)
        grams[key].total_abs.add_(rows.abs().sum(0))

    return observe
