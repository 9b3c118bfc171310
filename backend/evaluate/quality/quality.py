"""How much of the original's output quality a saved variant keeps: perplexity, KL divergence, agreement of greedy answers.

Scores the files as saved: `quality_states` takes the text through each of them, with integers turned back into weights and
activations rounded where the checkpoint says so (the dequantized reference, in fp32). Knows nothing of engines or servers.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import InvalidModel, InvalidWorkload, WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.maths.intervals import mean_ci95
from backend.evaluate.quality.states import HERE, Model, Place, method, opened
from backend.layered import source
from backend.layered.passes import memory_errors
from backend.layered.products import fast_products

if TYPE_CHECKING:
    import torch

ROWS = (16, 128)
"""Fewest and most positions whose distributions over the vocabulary are held in double precision at a time, and their numbers:"""
NUMBERS = 1 << 23


MAX_LOSS = 700.0
"""Nats a token; e to this still is a number."""


class Row(NamedTuple):
    """The means over the positions of one window of text."""

    before: float
    """Negative log-likelihood under the original, nats a token."""
    after: float
    """Under the candidate."""
    kl: float
    """KL(original || candidate), nats a token."""
    match: float
    """Share of positions whose most probable token is the original's, the text itself as context."""


def score(
    original_dir: Path, candidate_dir: Path, text: str, *, length: int = 512, windows: int | None = None, progress: Progress,
    place: Place = HERE,
) -> dict[str, Any]:  # fmt: skip
    """Score the checkpoint in `candidate_dir` against the one in `original_dir` on held-out `text`.

    The text is cut into windows of `length` tokens that do not overlap; `windows` of them, evenly spread, or all are used.
    One decoder layer of one model is in memory at a time; `place` says where, and where hidden states lie.
    Returns `perplexity`, `perplexity_original`, `kl_mean` (nats a token, KL(original || candidate) over the full vocabulary),
    `kl_ci95` (paired t-interval over windows; None for one window), `greedy_match` (share of positions whose most probable
    token is the original's), `scored`, `windows`, `tokens`.
    Raises InvalidWorkload (text too short), InvalidModel (other vocabulary), ModelDamaged (a checkpoint cannot be loaded),
    WorkError (weights or output not finite, memory ran out), DiskFull.
    """
    tokens = window_tokens(original_dir, text, length, windows)
    rows = window_rows(original_dir, candidate_dir, tokens, progress, place)
    return _summary(rows, tokens, "dequantized" if method(candidate_dir) is not None else "original")


def window_tokens(model_dir: Path, text: str, length: int, count: int | None) -> torch.Tensor:
    """Token ids [windows, length] of `count` windows of the text, evenly spread, or of all. Raises InvalidWorkload."""
    import torch

    stream = tokenize(model_dir, [text])[0]
    available = len(stream) // length
    if available == 0:
        raise InvalidWorkload(
            f"The held-out text is only {len(stream)} tokens, shorter than one window of {length}: give more text."
        )
    kept = min(count or available, available)
    starts = [number * available // kept for number in range(kept)]
    return torch.tensor(stream[: available * length]).view(available, length)[starts]


def tokenize(model_dir: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text by the model's own tokenizer, without special tokens."""
    tokenizer = source.tokenizer(model_dir)
    return [list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]


@memory_errors()
def window_rows(
    original_dir: Path, candidate_dir: Path, tokens: torch.Tensor, progress: Progress, place: Place = HERE
) -> list[Row]:
    """Of each window of `tokens` [windows, length]. Raises what `score` raises."""
    original = opened(original_dir, place, progress.warn)
    same = candidate_dir.resolve() == original_dir.resolve()
    candidate = original if same else opened(candidate_dir, place, progress.warn)
    if original.vocabulary != candidate.vocabulary:
        raise InvalidModel(
            f"The variant's vocabulary ({candidate.vocabulary}) is not the original's ({original.vocabulary}): "
            "give the model it was made from."
        )
    models = [original] if same else [original, candidate]
    total = sum(model.layers for model in models)
    progress.phase("quality", "Scoring quality on held-out text, layer by layer", total=total, unit="layers")
    with tempfile.TemporaryDirectory(prefix="quality-", dir=place.folder) as folder, fast_products():
        done, left = 0, []
        for number, model in enumerate(models):
            work = Path(folder) / str(number)
            work.mkdir()
            left.append(model.run(tokens, work, lambda share, done=done: progress.advance(round(done + share, 2))))  # type: ignore[misc]
            done += model.layers - 1
        heads = len(models)
        return _compared(models, left, tokens, lambda share: progress.advance(round(done + heads * share, 2)))


def _compared(
    models: Sequence[Model], left: Sequence[torch.Tensor], tokens: torch.Tensor, tick: Callable[[float], None]
) -> list[Row]:
    """The logits of the first model and of the last at the same positions, some at a time."""
    import torch

    with ExitStack() as held:
        head = held.enter_context(models[0].head())
        other = head if models[-1].shares_head(models[0]) else held.enter_context(models[-1].head())
        found = []
        rows = max(ROWS[0], min(ROWS[1], NUMBERS // models[0].vocabulary))
        for number, window in enumerate(tokens):
            totals, count = torch.zeros(len(Row._fields), dtype=torch.float64), len(window) - 1
            for start in range(0, count, rows):
                part = slice(start, min(start + rows, count))
                reference = head(left[0], number, part)
                logits = other(left[-1], number, part) if len(models) > 1 else reference
                totals += _sums(reference, logits, window[1:][part].to(reference.device)).cpu()
                tick((number + part.stop / count) / len(tokens))
            found.append(Row(*(totals / count).tolist()))
    return found


def _sums(reference: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sums over positions of what a `Row` holds, in double precision [4]."""
    import torch

    log_p, log_q = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    picked = targets[:, None]
    kl = (log_p.exp() * (log_p - log_q)).sum()
    same = (log_p.argmax(-1) == log_q.argmax(-1)).sum()
    return torch.stack([-log_p.gather(1, picked).sum(), -log_q.gather(1, picked).sum(), kl, same])


def _summary(rows: list[Row], tokens: torch.Tensor, scored: str) -> dict[str, Any]:
    before, after, kl, match = (list(column) for column in zip(*rows, strict=True))
    if not all(math.isfinite(value) for row in rows for value in row) or max(*before, *after) > MAX_LOSS:
        raise WorkError("The model's output is not finite on the held-out text: the weights are damaged, make it again.")
    return {
        "perplexity_original": math.exp(fmean(before)),
        "perplexity": math.exp(fmean(after)),
        "kl_mean": fmean(kl),
        "kl_ci95": mean_ci95(kl),
        "greedy_match": fmean(match),
        "scored": scored,
        "windows": len(rows),
        "tokens": tokens.numel(),
    }


def greedy_match(baseline: Sequence[Sequence[Any]], variant: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Compare greedy answers, token by token, to the same prompts. Each answer is a sequence of tokens; pairs by position.

    `greedy_match`: share of positions with identical tokens, up to the shorter answer of each pair (after a first
    difference the contexts differ, so later agreement is luck: it flatters).
    `prefix_match`: share of those positions before the pair's first difference (the strict reading).
    `first_divergence_share`: pairs that part at all, a different length included, over tokens the variant generated.
    Shares are None where there is nothing to compare. Raises ValueError for lists of different length.
    """
    pairs = list(zip(baseline, variant, strict=True))
    positions = sum(min(len(a), len(b)) for a, b in pairs)
    generated = sum(len(b) for _, b in pairs)
    same = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
    diverged = sum(list(a) != list(b) for a, b in pairs)
    return {
        "greedy_match": same / positions if positions else None,
        "prefix_match": sum(_common_prefix(a, b) for a, b in pairs) / positions if positions else None,
        "first_divergence_share": diverged / generated if generated else None,
        "diverged_answers": diverged,
        "answers": len(pairs),
        "tokens": generated,
    }


def _common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    same = (x == y for x, y in zip(a, b, strict=False))
    return next((number for number, equal in enumerate(same) if not equal), min(len(a), len(b)))
