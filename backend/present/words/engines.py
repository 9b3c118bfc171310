"""Sentences on the engines that serve the variants of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.domain.evaluation.document import Evaluation, Quality, Variant, VariantResult
from backend.domain.figures import code, figure, listed, small
from backend.domain.planner.engine_fit import EngineFit
from backend.domain.recipe.serving_engines import ENGINES
from backend.present.words import quality_loss


def fit_sentence(fit: EngineFit) -> str:
    """Return whether an engine serves the unchanged model, with what is predicted and where that comes from."""
    if not fit.fits:
        return f"{fit.title}: no. {' '.join(fit.reasons)}"
    return f"{fit.title} as {fit.weight_format}: {fit_figures(fit)} ({fit.basis})."


def fit_figures(fit: EngineFit) -> str:
    """Return memory and time to ready: `0.18 to 0.28 GB with 2,048 tokens in the cache, ready after 0.35 to 3.0 s`."""
    parts = []
    if fit.memory_bytes is not None:
        gigabytes = " to ".join(dict.fromkeys(figure(size / 1e9, 2) for size in fit.memory_bytes))
        parts.append(f"{gigabytes} GB with {fit.cache_tokens:,} tokens in the cache")
    if fit.ready_seconds is not None:
        parts.append(f"ready after {ready_words(fit.ready_seconds)}")
    return ", ".join(parts)


def ready_words(seconds: tuple[float, float]) -> str:
    """Return seconds to ready: `0.4 to 2.9 s`, one figure where both ends are the same."""
    return " to ".join(dict.fromkeys(figure(end, 2) for end in seconds)) + " s"


def expected_words(seconds: tuple[float, float]) -> str:
    """Return (least, most) seconds that are expected: `about 25 s`, `51 to 200 s`."""
    words = ready_words(seconds)
    return words if " to " in words else f"about {words}"


def choice_sentences(variants: Iterable[Variant]) -> list[str]:
    """Return a sentence for each variant whose engine was chosen for a person who left it open."""
    return [f"{code(variant.name)}: {variant.engine_reason}" for variant in variants if variant.engine_reason]


def sharing_sentences(endpoints: Sequence[str]) -> list[str]:
    """Return the sentence on endpoints that are loaded beside a measurement; none where there are none."""
    if not endpoints:
        return []
    names = listed([f"`{name}`" for name in endpoints])
    kind, them = ("endpoints", "them") if len(endpoints) > 1 else ("an endpoint", "it")
    return [
        f"On this machine {names} {'are' if len(endpoints) > 1 else 'is'} loaded as {kind}: requests to {them} slow "
        f"down what is measured, so stop {them} for figures of a quiet machine."
    ]


def engine_sentences(evaluation: Evaluation) -> list[str]:
    """Return which engine served which variant where there were several, and why one was chosen."""
    names: dict[str, list[str]] = {}
    for result in evaluation.variants:
        if result.variant.kind != "url":
            title = ENGINES[result.variant.serving.engine_name].title
            names.setdefault(title, []).append(code(result.name))
    served = "; ".join(f"{listed(served)} by {title}" for title, served in names.items())
    several = [f"Served {served}."] if len(names) > 1 else []
    return several + choice_sentences(result.variant for result in evaluation.variants)


def cross_engine_sentences(evaluation: Evaluation) -> list[str]:
    """Return, for each variant on another engine than the baseline's, what the engines alone change."""
    baseline, *others = evaluation.variants
    return [
        _cross_engine_sentence(baseline, result)
        for result in others
        if "url" not in {baseline.variant.kind, result.variant.kind}
        and result.variant.serving.engine_name != baseline.variant.serving.engine_name
    ]


def _cross_engine_sentence(baseline: VariantResult, result: VariantResult) -> str:
    engines = listed([ENGINES[each.variant.serving.engine_name].title for each in (result, baseline)])
    pair = f"{code(result.name)} and {code(baseline.name)}"
    # 1. Other weights: only a part of the difference is the engine's.
    if result.variant.model_path != baseline.variant.model_path:
        return (
            f"{pair} are served by {engines}: a part of the difference in their answers is floating point (sums in "
            "another order), not the recipe."
        )
    # 2. The same weights: all of it is, with what an engine's reader makes of a GGUF file (OpenVINO's rounds Q4_1).
    measured = _as_served(result.quality)
    return (
        f"{pair} are the same model on {engines}: the engines alone (sums in another order, and how each reads the "
        f"blocks of a GGUF file) make {measured or 'the difference in their answers'}."
    )


def _as_served(quality: Quality | None) -> str:
    """Say how far the servers' distributions and answers are apart; nothing where that was not measured."""
    if quality is None:
        return ""
    parts = []
    if quality.served_kl is not None:
        parts.append(f"a KL of at least {small(quality.served_kl)} as served")
    if quality.served_same_top is not None:
        parts.append(quality_loss.same_top(quality.served_same_top))
    if quality.greedy_match is not None:
        parts.append(f"{quality.greedy_match:.0%} equal greedy tokens")
    return ", ".join(parts)
