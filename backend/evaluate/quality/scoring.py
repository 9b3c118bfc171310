"""Scores how much of the original's output quality a saved variant has: perplexity, KL divergence, greedy agreement.

Scores the files as saved: `model_logits` takes the text through each of them, with integers turned back into weights
and activations rounded if the checkpoint says so (the dequantized reference, in fp32). Knows nothing of engines or
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
from backend.domain.needs.job_memory import scored_rows
from backend.evaluate.quality import hidden_state_cache
from backend.evaluate.quality.divergence import LogitComparer, Position
from backend.evaluate.quality.model_logits import DEFAULT_PLACE, ScoredModel, ScoringPlace, is_quantized, open_model
from backend.layered import tokenizers, weight_source
from backend.layered.layer_passes import memory_errors
from backend.layered.matrix_products import fast_products

if TYPE_CHECKING:
    import torch

Document = str | tuple[str, str]
"""A text, or a prompt and its answer."""
MAX_LOSS = 700.0
"""Nats per token; e to this power is still a finite number."""


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
    """Score the checkpoint in `candidate_dir` against the one in `original_dir` on a held-out text.

    `text` is one or several documents; a prompt with its answer is written in the model's chat template. The text is
    cut into windows of `length` tokens that do not overlap, each begun as the tokenizer begins a text; `windows` of
    them, evenly spread, or all are used. One decoder layer of one model is in memory at a time; `place` says on which
    device, and where hidden states are stored.

    Returns `perplexity`, `perplexity_original`; `kl_mean` (nats per token, KL(original || candidate) over the full
    vocabulary) with `kl_ci95` (paired t-interval over windows; None for one window), `kl_median`, `kl_p99` and
    `kl_p999` over positions; `same_top` (share of positions whose most probable token is the original's, the text
    itself as context) with `same_top_ci95`; `scored`, `windows`, `tokens`.

    Raises InvalidWorkload (text too short), InvalidModel (other vocabulary), ModelDamaged (a checkpoint cannot be
    loaded), WorkError (weights or output not finite, out of memory), DiskFull.
    """
    # Both models take the same windows of the text through their layers.
    tokens = window_tokens(original_dir, text, length, windows)
    figures = positions(original_dir, candidate_dir, tokens, progress, place)
    return _summarise(figures, tokens, "dequantized" if is_quantized(candidate_dir) else "original")


def window_tokens(model_dir: Path, text: str | Sequence[Document], length: int, count: int | None) -> torch.Tensor:
    """Return the token ids [windows, length] of `count` windows of the text, evenly spread, or of all.

    Raises InvalidWorkload.
    """
    import torch

    # 1. Tokenize all documents as one stream.
    loaded = tokenizers.load(model_dir)
    documents = [text] if isinstance(text, str) else text
    texts = [
        document if isinstance(document, str) else tokenizers.format_answered(loaded, *document)
        for document in documents
    ]
    begin = torch.tensor(tokenizers.beginning_tokens(loaded), dtype=torch.long)
    whole = weight_source.within_positions(model_dir, length)
    length = whole - len(begin)
    stream: list[int] = []
    for document_text in texts:
        stream += _ids(loaded, document_text)

    # 2. Cut it into windows and choose some, evenly spread.
    available = len(stream) // length
    if available == 0:
        raise InvalidWorkload(
            f"The held-out text is only {len(stream)} tokens, shorter than one window of {whole}: give more text."
        )
    chosen = min(count or available, available)
    starts = [number * available // chosen for number in range(chosen)]
    windows = torch.tensor(stream[: available * length]).view(available, length)[starts]
    return torch.cat([begin.expand(chosen, -1), windows], 1)


def tokenize(model_dir: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text by the model's own tokenizer, without special tokens."""
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
    """Return the fields of `divergence.Position` for each position of `tokens` [windows, length].

    The result is [windows, length - 1, 4], double.

    Raises what `score` raises.
    """
    # 1. Open both models; the original compared with itself is opened once.
    original = open_model(original_dir, place, progress.warn)
    same = candidate_dir.resolve() == original_dir.resolve()
    candidate = original if same else open_model(candidate_dir, place, progress.warn)
    if original.vocabulary != candidate.vocabulary:
        raise InvalidModel(
            f"The variant's vocabulary ({candidate.vocabulary}) is not the original's ({original.vocabulary}): "
            "give the model it was made from."
        )

    # 2. Take the text through each model, and compare the logits of both.
    models = [original] if same else [original, candidate]
    total = sum(model.layers for model in models)
    progress.phase("quality", "Scoring quality on held-out text, layer by layer", total=total, unit="layers")
    with tempfile.TemporaryDirectory(prefix="quality-", dir=place.folder) as folder, fast_products():
        done, states = 0, []
        for number, model in enumerate(models):
            work = Path(folder) / str(number)
            work.mkdir()

            def report(share: float, finished: int = done) -> None:
                progress.advance(round(finished + share, 2))

            run = partial(model.run, tokens, work, report)
            cache = place.cache if number == 0 and model.streams else None
            states.append(hidden_state_cache.cached_states(cache, original_dir, tokens, run))
            done += model.layers - 1
        heads = len(models)
        return _compare_logits(models, states, tokens, lambda share: progress.advance(round(done + heads * share, 2)))


def _compare_logits(
    models: Sequence[ScoredModel], states: Sequence[torch.Tensor], tokens: torch.Tensor, tick: Callable[[float], None]
) -> torch.Tensor:
    """Compare the logits of the first and the last model at the same positions, some at a time."""
    import torch

    # One row of figures per position.
    count = tokens.shape[1] - 1
    figures = torch.empty(len(tokens), count, len(Position._fields), dtype=torch.float64)
    # Load the heads; a head that both models share is loaded once.
    with ExitStack() as stack:
        head = stack.enter_context(models[0].head())
        other = head if models[-1].shares_head(models[0]) else stack.enter_context(models[-1].head())
        rows = scored_rows(models[0].vocabulary)
        comparer = None
        # Compare some positions at a time, since logits over the vocabulary are large.
        for number, window in enumerate(tokens):
            for start in range(0, count, rows):
                part = slice(start, min(start + rows, count))
                reference = head(states[0], number, part)
                logits = other(states[-1], number, part) if len(models) > 1 else reference
                comparer = comparer or LogitComparer(reference.shape[-1], reference.device)
                figures[number, part] = comparer.positions(
                    reference, logits, window[1:][part].to(reference.device)
                ).cpu()
                tick((number + part.stop / count) / len(tokens))
    return figures


def _summarise(figures: torch.Tensor, tokens: torch.Tensor, scored: str) -> dict[str, Any]:
    # Means of each window; figures that are not finite say that the weights are damaged.
    before, after, kl, same = figures.mean(1).T.tolist()
    if not bool(figures.isfinite().all()) or max(*before, *after) > MAX_LOSS:
        raise WorkError(
            "The model's output is not finite on the held-out text: the weights are damaged, make it again."
        )
    # Quantiles are over all positions, intervals over windows.
    median, p99, p999 = (float(figures[..., 2].flatten().quantile(share)) for share in (0.5, 0.99, 0.999))
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
    """Compare greedy answers to the same prompts, token by token; answers are paired by position.

    `greedy_match`: share of positions with identical tokens, up to the shorter answer of each pair (after a first
    difference the contexts differ, so later agreement is chance, and the share is too high).
    `first_divergence_share`: pairs that differ at all, in length too, over the tokens that the variant generated.
    Shares are None if there is nothing to compare. Raises ValueError for lists of different length.
    """
    # Count the positions that both answers have, and those that agree.
    pairs = list(zip(baseline, variant, strict=True))
    positions = sum(min(len(a), len(b)) for a, b in pairs)
    generated = sum(len(b) for _, b in pairs)
    same = 0
    for a, b in pairs:
        same += sum(x == y for x, y in zip(a, b, strict=False))
    # Count the pairs that differ at all, in length too.
    diverged = sum(list(a) != list(b) for a, b in pairs)
    return {
        "greedy_match": same / positions if positions else None,
        "first_divergence_share": diverged / generated if generated else None,
    }
