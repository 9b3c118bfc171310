"""The tasks' scores of an evaluation as rows and as words, for screens, the report and CSV. Pure."""

from __future__ import annotations

from typing import Any

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.tasks.task_scores import TaskScore
from backend.domain.figures import figure
from backend.present.words.verdicts import describe_task_score

PLUS_MINUS = "\u00a0±\u00a0"
"""A table does not break a line there."""


def rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One a variant, task and metric, in that order; a figure that there is none of is None."""
    return [
        _row(result, score, first=not place)
        for place, result in enumerate(evaluation.variants)
        for score in result.tasks
    ]


def short_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """The same in four columns, which fit a phone: samples in brackets, the verdict has the difference and its
    interval."""
    return [
        {
            "Variant": result.name,
            "Task": f"{score.task}, {_metric(score)} ({score.samples:,})",
            "Score": f"{figure(score.value)}{f'{PLUS_MINUS}{figure(score.stderr, 2)}' if score.stderr is not None else ''}",
            "Against the baseline": _compared(score, first=not place),
        }
        for place, result in enumerate(evaluation.variants)
        for score in result.tasks
    ]


def _metric(score: TaskScore) -> str:
    return score.metric if score.higher_is_better else f"{score.metric} (lower is better)"


def _compared(score: TaskScore, *, first: bool) -> str:
    return describe_task_score(score) or ("the baseline" if first else "not compared")


def _row(result: VariantResult, score: TaskScore, *, first: bool) -> dict[str, Any]:
    low, high = score.ci95 or (None, None)
    return {
        "Variant": result.name,
        "Task": score.task,
        "Metric": _metric(score),
        "Score": score.value,
        "Standard error": score.stderr,
        "Samples": score.samples,
        "Verdict": _compared(score, first=first),
        "Less the baseline's": score.difference,
        "95% from": low,
        "95% to": high,
        "p, adjusted": None if score.p_value is None else f"{score.p_value:.2g}",
    }


def cells(evaluation: Evaluation, result: VariantResult) -> dict[str, float | None]:
    """Of one variant: a value and its standard error for every figure that any variant has."""
    own = {score.name: score for score in result.tasks}
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(score.name for each in evaluation.variants for score in each.tasks):
        score = own.get(name)
        _, task, metric = name.split(".", 2)
        found[f"Task {task} {metric}"] = score.value if score else None
        found[f"Task {task} {metric}, standard error"] = score.stderr if score else None
    return found


def basis(evaluation: Evaluation) -> str | None:
    """What scored the tasks, on what, and what the intervals are; None without tasks."""
    scores = [score for result in evaluation.variants for score in result.tasks]
    if not scores:
        return None
    files = ", ".join(
        f"{task} {sha256[:12]}" for task, sha256 in dict.fromkeys((each.task, each.sha256) for each in scores)
    )
    limit = evaluation.options.task_limit
    part = f" Only the first {limit:,} samples of each task were scored." if limit else ""
    return (
        f"Measured by {scores[0].harness} on the served variants; ± is its standard error. "
        f"Differences are paired by sample where a score is a mean over "
        f"samples; intervals and p-values are corrected for all tests of the tasks (Holm). "
        f"SHA-256 of task and data: {files}.{part}"
    )
