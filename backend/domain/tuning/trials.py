"""Measurements of stacks, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from backend.domain.evaluation.comparison import PRIMARY
from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import Percentile, latency_percentile
from backend.domain.limits.quality_loss import known_loss

RoundKind = Literal["screen", "halve", "race"]


class TrialLevel(Frozen):
    """Figures at so many streams; latencies in milliseconds, at the percentile of the limits."""

    streams: int
    tokens_per_s: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    """Median of whole answers."""
    price: float | None = None
    """USD per million output tokens."""


class Trial(Frozen):
    """One stack as one evaluation measured it. `key` is the stack's, or the source of one that races against it."""

    key: str
    name: str
    evaluation: str
    round: RoundKind
    blocks: int
    levels: tuple[TrialLevel, ...] = ()
    kl: float | None = None
    kl_p99: float | None = None
    length_ratio: float | None = None
    """Mean tokens of an answer, in those of the original in the same round."""
    task_loss: float | None = None
    """Loss of the worst task against the original's score; negative where it gained."""
    worst_task: str | None = None
    ready_s: float | None = None
    failure: str | None = None
    """Why it could not be measured, in one sentence."""
    race_words: str | None = None
    """The comparison with the first of the leaders in a race, with the interval of the test."""
    is_open: bool = False
    """In a race: that comparison is too close to tell."""

    def at(self, streams: int) -> TrialLevel | None:
        return next((level for level in self.levels if level.streams == streams), None)


class Round(Frozen):
    """One evaluation of several stacks. `trials` is empty while it runs, and where it failed as a whole (`failure`)."""

    kind: RoundKind
    keys: tuple[str, ...]
    """Keys of the stacks, in the order of the evaluation's variants behind the original."""
    blocks: int
    seconds: float
    trials: tuple[Trial, ...] = ()
    failure: str | None = None

    @property
    def is_shared(self) -> bool:
        """Tell whether it has more than one stack beside the original."""
        return len(self.keys) > 1


def read_trials(
    document: Evaluation,
    evaluation: str,
    kind: RoundKind,
    keys: Sequence[str],
    percentile: Percentile,
    *,
    baseline: str,
) -> tuple[Trial, ...]:
    """Return a trial for each variant of the evaluation, in its order; `keys` are theirs, `baseline` that of the
    original."""
    results = dict(zip(keys, document.variants, strict=True))
    original = results.get(baseline)
    trials = (
        _read_trial(document, result, evaluation, kind, key, percentile).model_copy(
            update={"length_ratio": _length_ratio(result, original), **_task_fields(result)}
        )
        for key, result in results.items()
    )
    if kind != "race":
        return tuple(trials)
    return tuple(
        trial.model_copy(
            update={"race_words": _race_words(document, trial.name), "is_open": _is_open(document, trial.name)}
        )
        for trial in trials
    )


def _is_open(document: Evaluation, name: str) -> bool:
    """Tell whether the race left open, at some load, how the variant compares with the first one."""
    rows = (one for one in document.comparison if one.metric == PRIMARY and one.variant == name)
    return any(one.outcome == "undecided" for one in rows)


def _race_words(document: Evaluation, name: str) -> str | None:
    """Return `1.04x (0.98 to 1.10) of its output tokens/s at 1 stream, too close to tell` against the first variant."""
    parts = []
    for one in document.comparison:
        if one.metric == PRIMARY and one.variant == name and one.ratio is not None:
            interval = f" ({one.ci95[0]:.2f} to {one.ci95[1]:.2f})" if one.ci95 else ""
            close = {"undecided": ", too close to tell", "same": ", the same"}.get(one.outcome, "")
            parts.append(f"{one.ratio:.2f}x{interval} at {one.load.words}{close}")
    return f"{'; '.join(parts)} of the tokens/s of {document.variants[0].name}" if parts else None


def _read_trial(
    document: Evaluation, result: VariantResult, evaluation: str, kind: RoundKind, key: str, percentile: Percentile
) -> Trial:
    levels = [_read_level(level, percentile) for level in result.levels if level.load.is_closed and is_sound(level)]
    measured = tuple(level for level in levels if level is not None)
    quality = result.quality
    lost = f"its server ended: {result.lost}" if result.lost else None
    unsound = None if measured else "no level of it gave usable figures"
    return Trial(
        key=key,
        name=result.name,
        evaluation=evaluation,
        round=kind,
        blocks=document.options.repeats,
        levels=measured,
        kl=known_loss(result),
        kl_p99=quality.kl_p99 if quality else None,
        ready_s=result.ready_seconds,
        failure=lost or unsound,
    )


def _length_ratio(result: VariantResult, original: VariantResult | None) -> float | None:
    """Return the mean tokens of an answer in those of the original, over the loads of both."""
    if original is None:
        return None
    usual = {level.load: level.output_tokens for level in original.levels}
    pairs = [(level.output_tokens, usual.get(level.load)) for level in result.levels]
    ratios = [tokens / others for tokens, others in pairs if tokens and others]
    return fmean(ratios) if ratios else None


def _task_fields(result: VariantResult) -> dict[str, float | str]:
    """Return the worst loss of all tasks that were compared, and the task."""
    losses = {
        score.task: -score.difference if score.higher_is_better else score.difference
        for score in result.tasks
        if score.difference is not None
    }
    if not losses:
        return {}
    worst = max(losses, key=losses.__getitem__)
    return {"task_loss": losses[worst], "worst_task": worst}


def _read_level(level: Level, percentile: Percentile) -> TrialLevel | None:
    if not level.output_tokens_per_s:
        return None
    return TrialLevel(
        streams=level.concurrency,
        tokens_per_s=level.output_tokens_per_s,
        ttft_ms=latency_percentile(level, "ttft_ms", percentile),
        tpot_ms=latency_percentile(level, "tpot_ms", percentile),
        latency_ms=level.client_latency_ms.p50 if level.client_latency_ms else None,
        price=level.price.per_million_output if level.price else None,
    )
