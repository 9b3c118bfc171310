"""What one variant scored in one metric of one lm-eval task, and how that compares with the baseline's score."""

from __future__ import annotations

from backend.domain.evaluation.verdict import Obstacle, Outcome
from backend.domain.frozen import Frozen


class TaskScore(Frozen):
    """`stderr` and `value` in the metric's own unit, a share from 0 to 1 for an accuracy.

    `difference` is variant less baseline, over the `compared` samples that both were scored on; None for the baseline.
    `ci95` and `p_value` are corrected for all tests of the evaluation's tasks (Holm), as in `Comparison`.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    samples: int
    higher_is_better: bool
    harness: str
    """Name and version of what scored it."""
    sha256: str
    """Of the task's file and its data."""
    cut: int = 0
    """Prompts that were longer than the context and lost their beginning."""
    compared: int | None = None
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    p_value: float | None = None
    outcome: Outcome | None = None
    """None where it was not compared."""
    why: Obstacle | None = None
    """None of a test."""

    @property
    def name(self) -> str:
        """As a condition names it: `task.TASK.METRIC`."""
        return f"task.{self.task}.{self.metric}"
