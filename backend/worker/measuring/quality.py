"""Measures the quality of each variant of an evaluation.

Perplexity and KL divergence come from the saved weights, which are scored once per model; agreement comes from the
greedy answers of the servers to the same prompts, compared with the baseline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.artifacts import artifact_folder
from backend.catalog.text import held_out_text
from backend.catalog.text.held_out_text import HeldOut
from backend.domain.errors import ArtifactCorrupt
from backend.domain.evaluation.answer_agreement import answered_pairs, measure_agreement, pooled_interval
from backend.domain.evaluation.document import Quality, Variant
from backend.domain.jobs.artifact import SCORES
from backend.domain.jobs.progress import Progress

WINDOWS = 24
ON_NEURON = "What Neuron computes is not in a file that could be scored: see the greedy match."
IN_GGUF = "Weights in a GGUF file are scored as served: see the divergence as served and the greedy match."
Answers = Sequence[str | None]
"""The answers by prompt; None if the request failed, which is not the same as an answer without words."""
Scores = dict[str, Any]
"""The figures that `scoring.score` returns, as the manifest of an artifact stores them."""


def measure_quality(
    variants: Sequence[Variant], progress: Progress, folder: Path, *, cache: Path | None = None, text: str | None = None
) -> dict[int, Quality]:
    """Return the quality of the saved weights by variant index.

    `text` is the name of a bundled text or a file; None chooses the text that suits the original. `folder` takes large
    hidden states of this run, `cache` those of originals for later runs. The weights behind a URL cannot be scored:
    their `scored` is `unavailable`.

    A score that the manifest of an artifact has of the same text is not computed again. Speculative decoding and
    compilation do not change weights, so such a variant has the score of its weights; whatever serving changed shows
    in the greedy match.
    """
    qualities = {
        index: Quality(scored="unavailable", note="The weights behind a URL cannot be read.")
        for index in range(len(variants))
    }
    scorer = _Scorer(progress, folder, cache)
    # Artifacts first: the scores in their manifests include those of their originals.
    artifacts_first = sorted(enumerate(variants), key=lambda pair: pair[1].kind != "artifact")
    for index, variant in artifacts_first:
        if variant.neuron is not None:
            qualities[index] = Quality(scored="unavailable", note=ON_NEURON)
        elif variant.gguf is not None:
            qualities[index] = scorer.recorded_quality(variant, text)
        elif variant.model_path is not None and variant.original_path is not None:
            held_out = held_out_text.read(text, Path(variant.original_path))
            qualities[index] = scorer.quality(variant.original_path, variant.model_path, held_out)
    return qualities


class _Scorer:
    """Scores each pair of weights once."""

    def __init__(self, progress: Progress, folder: Path, cache: Path | None) -> None:
        self.progress, self.folder, self.cache = progress, folder, cache
        self.known: dict[tuple[str, str, str], Scores] = {}
        """Scores by identity of the original, identity of the model and sha256 of the text."""

    def quality(self, original: str, model: str, text: HeldOut) -> Quality:
        first, second = _identity(original), _identity(model)
        key = first, second, text.sha256
        if key not in self.known:
            self.known[key] = self._recorded_scores(model, text) or self._score(original, model, text)
            self.known.setdefault((first, first, text.sha256), _scores_of_original(self.known[key]))
        fields = {name: self.known[key].get(name) for name in SCORES}
        return Quality(**fields, text=text.name, scored="original" if first == second else "dequantized")

    def recorded_quality(self, variant: Variant, text: str | None) -> Quality:
        """Return what the job that made a GGUF file measured of its dequantized weights; unavailable of one that was
        brought."""
        model, original = variant.model_path, variant.original_path
        if model is not None and original is not None:
            held_out = held_out_text.read(text, Path(original))
            if scores := self._recorded_scores(model, held_out):
                fields = {name: scores.get(name) for name in SCORES}
                return Quality(**fields, text=held_out.name, scored="dequantized")
        return Quality(scored="unavailable", note=IN_GGUF)

    def _recorded_scores(self, model: str, text: HeldOut) -> Scores | None:
        """Return what the job that made the artifact measured on the same text, or None."""
        try:
            quality = artifact_folder.read_manifest(Path(model).parent).quality or {}
        except ArtifactCorrupt:  # no artifact
            return None
        if quality.get("text_sha256") != text.sha256:
            return None
        return {
            **quality,
            "perplexity": quality["perplexity_after"],
            "perplexity_original": quality["perplexity_before"],
        }

    def _score(self, original: str, model: str, text: HeldOut) -> Scores:
        from backend.evaluate.quality import scoring
        from backend.evaluate.quality.model_logits import ScoringPlace
        from backend.layered.layer_passes import devices

        place = ScoringPlace(devices(), self.folder, cache=self.cache)
        paths = Path(original), Path(model)
        return scoring.score(*paths, text.documents, windows=WINDOWS, progress=self.progress, place=place)


def _scores_of_original(scores: Scores) -> Scores:
    """Return the scores of the original itself, which loses nothing, from those of a variant."""
    no_loss = {"kl_mean": 0.0, "kl_ci95": (0.0, 0.0), "kl_median": 0.0, "kl_p99": 0.0, "kl_p999": 0.0, "same_top": 1.0}
    perplexity = scores["perplexity_original"]
    return {**no_loss, "same_top_ci95": None, "perplexity": perplexity, "perplexity_original": perplexity}


def _identity(folder: str) -> str:
    """Return a name for the weights, the same for copies: the sizes and first 4 MiB of the weight files."""
    parts = []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as source:
            parts.append(f"{path.stat().st_size}:{hash(source.read(1 << 22))}")
    return "|".join(parts)


def compare_answers(
    baseline: Variant, answers: dict[int, Answers], repeated: Answers | None
) -> dict[int, dict[str, Any]]:
    """Return the agreement figures of `Quality` by variant index; those over tokens need the baseline's tokenizer.

    If no prompt was answered by both, there are only the counts. The baseline is compared with `repeated`, its own
    answers when it was asked again: no variant can be expected to agree more.
    """
    if 0 not in answers:
        return {}
    # 1. Compare each variant, and the baseline's second answers, with the baseline's first.
    tokenizer = Path(baseline.model_path) if baseline.model_path else None
    others = {index: texts for index, texts in answers.items() if index}
    if repeated is not None:
        others[0] = repeated
    agreements = {index: _agreement(answers[0], texts, tokenizer) for index, texts in others.items()}

    # 2. Put the baseline's agreement with itself beside every other.
    greedy_self = agreements.get(0, {}).get("greedy_match")
    for index, figures in agreements.items():
        if index:
            figures["greedy_self"] = greedy_self
    return agreements


def _agreement(baseline: Answers, texts: Answers, tokenizer: Path | None) -> dict[str, Any]:
    pairs = answered_pairs(baseline, texts)
    agreement = measure_agreement(pairs)
    counts = {"answers": len(pairs), "answers_asked": len(texts)}
    return {**counts, **agreement._asdict(), **_token_agreement(tokenizer, pairs)} if agreement else counts


def _token_agreement(tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the agreement by tokens; empty without a tokenizer."""
    if tokenizer is None:
        return {}
    from backend.evaluate.quality import scoring

    first, second = (scoring.tokenize(tokenizer, texts) for texts in zip(*pairs, strict=True))
    match = scoring.greedy_match(first, second)
    share, lengths = match["greedy_match"], [min(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    return {
        "greedy_match": share,
        "greedy_ci95": None if share is None else pooled_interval(share, lengths),
        "first_divergence_share": match["first_divergence_share"],
    }
