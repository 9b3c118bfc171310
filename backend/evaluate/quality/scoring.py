"""How much of the original's output quality a saved variant keeps: perplexity, KL divergence, agreement of greedy
answers.

Scores the files as saved: `states` takes the text through each of them, with integers turned back into weights and
activations rounded where the checkpoint says so (the dequantized reference, in fp32). Knows nothing of engines or
servers.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from backend.domain.errors import InvalidModel, InvalidWorkload, WorkError
from backend.domain.evaluation.answer_agreement import mean_interval
from backend.domain.jobs.progress import Progress
from backend.domain.maths.intervals import mean_ci95
from backend.evaluate.quality import hidden_state_cache
from backend.evaluate.quality.divergence import LogitComparer, Position
from backend.evaluate.quality.model_logits import DEFAULT_PLACE, ScoredModel, ScoringPlace, is_quantized, open_model
from backend.layered import tokenizers, weight_source
from backend.layered.layer_passes import memory_errors
from backend.layered.matrix_products import fast_products

if TYPE_CHECKING:
    import torch

LOGITS = 1 << 22
"""Numbers of the logits that are made at a time, some positions over the whole vocabulary: 16 MB a model."""
ROWS = (16, 512)
"""Fewest and most positions at a time, whatever the vocabulary: of fewer the head would be read from memory too
often."""
Document = str | tuple[str, str]
"""A text, or a prompt and its answer."""
MAX_LOSS = 700.0
"""Nats a token; e to this still is a number."""


def score(
    original_dir: Path,
    candidate_dir: Path,
    text: str | Sequence[Document],
    *,
    length: int = 512,
    windows: int | None = None,
    progress: Progress,
    place: ScoringPlace = DEFAULT_PLACE,
) -> dict[str, Any]:
    """Score the checkpoint in `candidate_dir` against the one in `original_dir` on held-out `text`, one or several
    documents, a prompt with its answer among them in the model's chat template.

    The text is cut into windows of `length` tokens that do not overlap, each begun as the tokenizer begins a text;
    `windows` of them, evenly spread, or all are used.
    One decoder layer of one model is in memory at a time; `place` says where, and where hidden states lie. Returns
    `perplexity`, `perplexity_original`; `kl_mean` (nats a token, KL(original || candidate) over the full vocabulary)
    with `kl_ci95` (paired t-interval over windows; None for one window), `kl_median`, `kl_p99` and `kl_p999` over
    positions; `same_top` (share of positions whose most probable token is the original's, the text itself as context)
    with `same_top_ci95`; `scored`, `windows`, `tokens`.
    Raises InvalidWorkload (text too short), InvalidModel (other vocabulary), ModelDamaged (a checkpoint cannot be
    loaded), WorkError (weights or output not finite, memory ran out), DiskFull.
    """
    tokens = window_tokens(original_dir, text, length, windows)
    found = positions(original_dir, candidate_dir, tokens, progress, place)
    return _summary(found, tokens, "dequantized" if is_quantized(candidate_dir) else "original")


def window_tokens(model_dir: Path, text: str | Sequence[Document], length: int, count: int | None) -> torch.Tensor:
    """Token ids [windows, length] of `count` windows of the text, evenly spread, or of all. Raises InvalidWorkload."""
    import torch

    loaded = tokenizers.load(model_dir)
    documents = [text] if isinstance(text, str) else text
    texts = [each if isinstance(each, str) else tokenizers.written(loaded, *each) for each in documents]
    begin = torch.tensor(tokenizers.begins_with(loaded), dtype=torch.long)
    whole = weight_source.within_positions(model_dir, length)
    length = whole - len(begin)
    stream = [token for each in texts for token in _ids(loaded, each)]
    available = len(stream) // length
    if available == 0:
        raise InvalidWorkload(
            f"The held-out text is only {len(stream)} tokens, shorter than one window of {whole}: give more text."
        )
    chosen = min(count or available, available)
    starts = [number * available // chosen for number in range(chosen)]
    found = torch.tensor(stream[: available * length]).view(available, length)[starts]
    return torch.cat([begin.expand(chosen, -1), found], 1)


def tokenize(model_dir: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text by the model's own tokenizer, without special tokens."""
    loaded = tokenizers.load(model_dir)
    return [_ids(loaded, text) for text in texts]


def _ids(loaded: Any, text: str) -> list[int]:
    return list(loaded(text, add_special_tokens=False, verbose=False)["input_ids"])


@memory_errors()
def positions(
    original_dir: Path,
    candidate_dir: Path,
    tokens: torch.Tensor,
    progress: Progress,
    place: ScoringPlace = DEFAULT_PLACE,
) -> torch.Tensor:
    """Of each position of `tokens` [windows, length] what `divergence.Position` says [windows, length - 1, 4], double.

    Raises what `score` raises.
    """
    original = open_model(original_dir, place, progress.warn)
    same = candidate_dir.resolve() == original_dir.resolve()
    candidate = original if same else open_model(candidate_dir, place, progress.warn)
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
            run = partial(model.run, tokens, work, lambda share, done=done: progress.advance(round(done + share, 2)))  # type: ignore[misc]
            keeps = number == 0 and model.streams
            left.append(hidden_state_cache.cached_states(place.cache if keeps else None, original_dir, tokens, run))
            done += model.layers - 1
        heads = len(models)
        return _compared(models, left, tokens, lambda share: progress.advance(round(done + heads * share, 2)))


def _compared(
    models: Sequence[ScoredModel], left: Sequence[torch.Tensor], tokens: torch.Tensor, tick: Callable[[float], None]
) -> torch.Tensor:
    """The logits of the first model and of the last at the same positions, some at a time."""
    import torch

    count = tokens.shape[1] - 1
    found = torch.empty(len(tokens), count, len(Position._fields), dtype=torch.float64)
    with ExitStack() as held:
        head = held.enter_context(models[0].head())
        other = head if models[-1].shares_head(models[0]) else held.enter_context(models[-1].head())
        rows = max(ROWS[0], min(ROWS[1], LOGITS // models[0].vocabulary))
        comparer = None
        for number, window in enumerate(tokens):
            for start in range(0, count, rows):
                part = slice(start, min(start + rows, count))
                reference = head(left[0], number, part)
                logits = other(left[-1], number, part) if len(models) > 1 else reference
                comparer = comparer or LogitComparer(reference.shape[-1], reference.device)
                found[number, part] = comparer.positions(reference, logits, window[1:][part].to(reference.device)).cpu()
                tick((number + part.stop / count) / len(tokens))
    return found


def _summary(found: torch.Tensor, tokens: torch.Tensor, scored: str) -> dict[str, Any]:
    before, after, kl, same = found.mean(1).T.tolist()
    if not bool(found.isfinite().all()) or max(*before, *after) > MAX_LOSS:
        raise WorkError(
            "The model's output is not finite on the held-out text: the weights are damaged, make it again."
        )
    median, p99, p999 = (float(found[..., 2].flatten().quantile(share)) for share in (0.5, 0.99, 0.999))
    return {
        "perplexity_original": math.exp(fmean(before)),
        "perplexity": math.exp(fmean(after)),
        "kl_mean": fmean(kl),
        "kl_ci95": mean_ci95(kl),
        "kl_median": median,
        "kl_p99": p99,
        "kl_p999": p999,
        "same_top": fmean(same),
        "same_top_ci95": mean_interval(same),
        "scored": scored,
        "windows": len(tokens),
        "tokens": tokens.numel(),
    }


def greedy_match(baseline: Sequence[Sequence[Any]], variant: Sequence[Sequence[Any]]) -> dict[str, float | None]:
    """Compare greedy answers, token by token, to the same prompts. Each answer is a sequence of tokens; pairs by
    position.

    `greedy_match`: share of positions with identical tokens, up to the shorter answer of each pair (after a first
    difference the contexts differ, so later agreement is luck: it flatters).
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
        "first_divergence_share": diverged / generated if generated else None,
    }
