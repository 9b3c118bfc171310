"""Task scores of an evaluation as rows and in words, for screens, the report and CSV. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.tasks.task_scores import TaskScore
from backend.domain.figures import counted, figure
from backend.present.words.verdicts import describe_task_score

PLUS_MINUS = "\u00a0±\u00a0"
"""With no-break spaces, so that a table breaks no line there."""


def scores_by_task(evaluation: Evaluation) -> Iterator[tuple[int, VariantResult, TaskScore]]:
    """Yield place, variant and score, task by task and metric by metric, so that the baseline is above the others."""
    for name in _names(evaluation):
        for place, result in enumerate(evaluation.variants):
            yield from ((place, result, score) for score in result.tasks if score.name == name)


def _names(evaluation: Evaluation) -> dict[str, None]:
    """Return the names of all scores of any variant, in their order."""
    return dict.fromkeys(score.name for result in evaluation.variants for score in result.tasks)


def rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return one row per task, metric and variant, in that order; a missing figure is None."""
    return [_row(result, score, first=not place) for place, result, score in scores_by_task(evaluation)]


def short_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return the same in few columns that fit a phone: samples in brackets, difference and interval in the verdict."""
    return [
        {
            "Variant": result.name,
            "Task": f"{score.task}, {_metric(score)} ({_samples(score)})",
            "Guessing": "unknown" if score.floor is None else figure(score.floor),
            "Score": _score_words(score),
            "Against the baseline": _compared(score, first=not place),
        }
        for place, result, score in scores_by_task(evaluation)
    ]


def _samples(score: TaskScore) -> str:
    """Return `200 of 2,376`, or the number alone where all were scored."""
    whole = "" if score.items in {None, score.samples} else f" of {score.items:,}"
    return f"{score.samples:,}{whole}"


def _score_words(score: TaskScore) -> str:
    error = "" if score.stderr is None else f"{PLUS_MINUS}{figure(score.stderr, 2)}"
    return f"{figure(score.value)}{error}"


def _metric(score: TaskScore) -> str:
    return score.metric if score.higher_is_better else f"{score.metric} (lower is better)"


def _compared(score: TaskScore, *, first: bool) -> str:
    return describe_task_score(score) or ("the baseline" if first else "not compared")


def _row(result: VariantResult, score: TaskScore, *, first: bool) -> dict[str, Any]:
    low, high = score.ci95 or (None, None)
    least, most = score.share_ci95 or (None, None)
    return {
        "Variant": result.name,
        "Task": score.task,
        "Metric": _metric(score),
        "Guessing": score.floor,
        "Score": score.value,
        "Standard error": score.stderr,
        "Score, 95% from": least,
        "Score, 95% to": most,
        "Samples": score.samples,
        "Of": score.items,
        "Verdict": _compared(score, first=first),
        "Difference to the baseline": score.difference,
        "95% from": low,
        "95% to": high,
        "p, adjusted": None if score.p_value is None else f"{score.p_value:.2g}",
    }


def cells(evaluation: Evaluation, result: VariantResult) -> dict[str, float | None]:
    """Return one variant's value and standard error for every score that any variant has."""
    own = {score.name: score for score in result.tasks}
    row: dict[str, float | None] = {}
    for name in _names(evaluation):
        score = own.get(name)
        _, task, metric = name.split(".", 2)
        row[f"Task {task} {metric}"] = score.value if score else None
        row[f"Task {task} {metric}, standard error"] = score.stderr if score else None
    return row


def guessing_sentences(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each score that is not above guessing: where the baseline guesses, a task tells nothing."""
    sentences = []
    for place, result, score in scores_by_task(evaluation):
        if score.is_guessing and score.floor is not None and score.share_ci95 is not None:
            low, high = map(figure, score.share_ci95)
            subject = f"{result.name} is not above guessing in {score.task}, {score.metric}"
            figures = f"95% interval {low} to {high}, guessing {figure(score.floor)}"
            effect = "" if place else ", so this score tells nothing of what the variants lost"
            sentences.append(f"{subject} ({figures}){effect}.")
    return sentences


def origins(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each task that says where its data is from, and its licence."""
    scores = {score.task: score for result in evaluation.variants for score in result.tasks}
    sentences = []
    for task, score in scores.items():
        parts = [
            score.source,
            score.licence and f"licence {score.licence}",
            score.items and counted(score.items, "item"),
        ]
        if score.source or score.licence:
            sentences.append(f"{task}: {'; '.join(part for part in parts if part)}.")
    return sentences


def basis(evaluation: Evaluation) -> str | None:
    """Return how the tasks were scored, and what the intervals are; None without tasks."""
    # Without scores there is nothing to explain.
    scores = [score for result in evaluation.variants for score in result.tasks]
    if not scores:
        return None
    # Name each task with the hash of its files, and a limit on its samples.
    files = ", ".join(
        f"{task} {sha256[:12]}" for task, sha256 in dict.fromkeys((score.task, score.sha256) for score in scores)
    )
    limit = evaluation.options.task_limit
    part = f" Only the first {limit:,} samples of each task were scored." if limit else ""
    origin = "".join(f" {sentence}" for sentence in origins(evaluation))
    return (
        f"Measured by {scores[0].harness} on the served variants; ± is the standard error. "
        "Scores that are means over samples are compared sample by sample; intervals and p-values are corrected for "
        "all tests of the tasks (Holm). Guessing is the share that a random choice reaches. "
        f"SHA-256 of task and data: {files}.{part}{origin}"
    )
