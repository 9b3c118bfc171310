"""The quality of each variant of an evaluation: perplexity and KL divergence on the saved weights, scored once a model, and the
greedy answers of what is served to the same prompts, against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.domain.evaluation.answers import agreement, answered, pooled_interval
from backend.domain.evaluation.document import Quality, Variant
from backend.domain.jobs.progress import Progress
from backend.settings import ASSETS

HELD_OUT = ASSETS / "text" / "held_out.txt"
WINDOWS = 24
GREEDY_PROMPTS = 12
"""At the most; of a workload of fewer lines each is asked once, for a second time would say nothing new."""

FIGURES = frozenset({"exact_match", "token_f1", "greedy_match", "first_divergence_share"})
Answers = Sequence[str | None]
"""By prompt. None where the request failed, which is not the same as an answer without words."""


def measure(variants: Sequence[Variant], progress: Progress, folder: Path) -> dict[int, Quality]:
    """Quality by variant index. A URL's weights cannot be scored: `scored` says unavailable. `folder` takes large hidden states.

    Speculative decoding and compilation keep the weights, so such a variant has its weights' score; what serving changed
    shows in the greedy match.
    """
    unread = Quality(scored="unavailable", note="The weights behind a URL cannot be read.")
    if all(variant.model_path is None or variant.original_path is None for variant in variants):
        return dict.fromkeys(range(len(variants)), unread)  # before seconds go into loading what would score them
    from backend.evaluate.quality import quality
    from backend.evaluate.quality.states import Place
    from backend.layered.passes import devices

    known: dict[tuple[str, str], dict[str, Any]] = {}
    found, place = {}, Place(devices(), folder)
    text = HELD_OUT.read_text()
    for index, variant in enumerate(variants):
        if variant.model_path is None or variant.original_path is None:
            found[index] = unread
            continue
        key = (_identity(variant.original_path), _identity(variant.model_path))
        if key not in known:
            paths = Path(variant.original_path), Path(variant.model_path)
            known[key] = quality.score(*paths, text, windows=WINDOWS, progress=progress, place=place)
        found[index] = _quality(known[key], same=key[0] == key[1])
    return found


def _quality(scored: dict[str, Any], *, same: bool) -> Quality:
    fields = {name: scored[name] for name in ("perplexity", "perplexity_original", "kl_mean", "kl_ci95")}
    return Quality(**fields, scored="original" if same else "dequantized")


def _identity(folder: str) -> str:
    """Copies of the same weights score alike: name them by the weight files' sizes and first bytes."""
    parts = []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as source:
            parts.append(f"{path.stat().st_size}:{hash(source.read(1 << 22))}")
    return "|".join(parts)


def compare_answers(baseline: Variant, answers: dict[int, Answers]) -> dict[int, dict[str, Any]]:
    """The agreement figures of `Quality` by variant index; those over tokens only where the baseline's tokenizer is at hand.

    Without a pair that both answered there are no figures, only that none of so many were compared. The baseline agrees with
    itself: a figure for gates and charts, but nothing was compared, so it has neither a number of answers nor intervals.
    """
    if 0 not in answers:
        return {}
    tokenizer = Path(baseline.model_path) if baseline.model_path else None
    found = {index: _against(answers[0], texts, tokenizer) for index, texts in answers.items()}
    return found | {0: {name: value for name, value in found[0].items() if name in FIGURES}}


def _against(baseline: Answers, texts: Answers, tokenizer: Path | None) -> dict[str, Any]:
    pairs = answered(baseline, texts)
    found = agreement(pairs)
    counts = {"answers": len(pairs), "answers_asked": len(texts)}
    return {**counts, **found._asdict(), **_tokens(tokenizer, pairs)} if found else counts


def _tokens(tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    if tokenizer is None:
        return {}
    from backend.evaluate.quality import quality

    first, second = (quality.tokenize(tokenizer, texts) for texts in zip(*pairs, strict=True))
    match = quality.greedy_match(first, second)
    share, lengths = match["greedy_match"], [min(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    return {
        "greedy_match": share,
        "greedy_ci95": None if share is None else pooled_interval(share, lengths),
        "first_divergence_share": match["first_divergence_share"],
    }
