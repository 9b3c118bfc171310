"""The quality of each variant of an evaluation: perplexity and KL divergence on the saved weights, scored once a model,
and the greedy answers of what is served to the same prompts, against the baseline's."""

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
Answers = Sequence[str | None]
"""By prompt. None where the request failed, which is not the same as an answer without words."""
Scores = dict[str, Any]
"""What `quality.score` gives, as the manifest of an artifact keeps it."""


def measure_quality(
    variants: Sequence[Variant], progress: Progress, folder: Path, *, kept: Path | None = None, text: str | None = None
) -> dict[int, Quality]:
    """Quality by variant index, on the bundled text of that name or a file (None: what suits the original). A URL's
    weights cannot be scored: `scored` says unavailable. `folder` takes large hidden states, `kept` those of originals
    from one scoring to the next.

    What the manifest of an artifact holds of the same text is not scored again. Speculative decoding and compilation
    keep the weights, so such a variant has its weights' score; what serving changed shows in the greedy match.
    """
    qualities = {
        index: Quality(scored="unavailable", note="The weights behind a URL cannot be read.")
        for index in range(len(variants))
    }
    scorer = _Scorer(progress, folder, kept)
    # Those that are known first: what an artifact was scored against, its original came to.
    for index, variant in sorted(enumerate(variants), key=lambda each: each[1].kind != "artifact"):
        if variant.neuron is not None:
            qualities[index] = Quality(scored="unavailable", note=ON_NEURON)
        elif variant.model_path is not None and variant.original_path is not None:
            chosen = held_out_text.read(text, Path(variant.original_path))
            qualities[index] = scorer.quality(variant.original_path, variant.model_path, chosen)
    return qualities


class _Scorer:
    """Scores each pair of weights once."""

    def __init__(self, progress: Progress, folder: Path, path: Path | None) -> None:
        self.progress, self.folder, self.cache = progress, folder, path
        self.known: dict[tuple[str, str, str], Scores] = {}

    def quality(self, original: str, model: str, text: HeldOut) -> Quality:
        first, second = _identity(original), _identity(model)
        key = first, second, text.sha256
        if key not in self.known:
            self.known[key] = self._recorded(model, text) or self._scored(original, model, text)
            self.known.setdefault((first, first, text.sha256), _with_itself(self.known[key]))
        fields = {name: self.known[key].get(name) for name in SCORES}
        return Quality(**fields, text=text.name, scored="original" if first == second else "dequantized")

    def _recorded(self, model: str, text: HeldOut) -> Scores | None:
        """What the job that made it measured, on the same text."""
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

    def _scored(self, original: str, model: str, text: HeldOut) -> Scores:
        from backend.evaluate.quality import scoring
        from backend.evaluate.quality.model_logits import ScoringPlace
        from backend.layered.layer_passes import devices

        place = ScoringPlace(devices(), self.folder, cache=self.cache)
        paths = Path(original), Path(model)
        return scoring.score(*paths, text.documents, windows=WINDOWS, progress=self.progress, place=place)


def _with_itself(scores: Scores) -> Scores:
    """What the original of these scores comes to: nothing is lost."""
    none = {"kl_mean": 0.0, "kl_ci95": (0.0, 0.0), "kl_median": 0.0, "kl_p99": 0.0, "kl_p999": 0.0, "same_top": 1.0}
    before = scores["perplexity_original"]
    return {**none, "same_top_ci95": None, "perplexity": before, "perplexity_original": before}


def _identity(folder: str) -> str:
    """Copies of the same weights score alike: name them by the weight files' sizes and first bytes."""
    parts = []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as source:
            parts.append(f"{path.stat().st_size}:{hash(source.read(1 << 22))}")
    return "|".join(parts)


def compare_answers(baseline: Variant, answers: dict[int, Answers], again: Answers | None) -> dict[int, dict[str, Any]]:
    """The agreement figures of `Quality` by variant index; those over tokens only where the baseline's tokenizer is at
    hand.

    Without a pair that both answered there are no figures, only that none of so many were compared. The baseline's own
    are of what it answered when it was asked `again`: no variant can be expected to agree more.
    """
    if 0 not in answers:
        return {}
    tokenizer = Path(baseline.model_path) if baseline.model_path else None
    others = {index: texts for index, texts in answers.items() if index} | ({} if again is None else {0: again})
    found = {index: _against(answers[0], texts, tokenizer) for index, texts in others.items()}
    itself = found.get(0, {}).get("greedy_match")
    return {index: {**each, "greedy_self": itself} if index else each for index, each in found.items()}


def _against(baseline: Answers, texts: Answers, tokenizer: Path | None) -> dict[str, Any]:
    pairs = answered_pairs(baseline, texts)
    found = measure_agreement(pairs)
    counts = {"answers": len(pairs), "answers_asked": len(texts)}
    return {**counts, **found._asdict(), **_tokens(tokenizer, pairs)} if found else counts


def _tokens(tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
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
