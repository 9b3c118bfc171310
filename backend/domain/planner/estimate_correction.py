"""Compares a prediction with a measurement on the same hardware and corrects it. Pure; knows nothing of storage.

The error is given at every measured concurrency and never averaged over them.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Level
from backend.domain.frozen import Frozen
from backend.domain.planner.roofline import Speed


class PredictionPoint(Frozen):
    """One measured level against the middle of its predicted range. `error` is predicted / measured - 1."""

    concurrency: int
    metric: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Calibration(Frozen):
    """Measured / predicted at the level nearest to the requested one; 1 where that metric was not measured.

    `points` are the predictions as they were, `after` the same once corrected: no error is left at the level that set
    the factors; the error at the others shows how far the correction carries.
    """

    concurrency: int
    ttft: float = 1.0
    tpot: float = 1.0
    rate: float = 1.0
    ready_seconds: float | None = None
    """Measured time to ready of a start alone; None where there was none."""
    points: tuple[PredictionPoint, ...]
    after: tuple[PredictionPoint, ...] = ()
    evaluation: str | None = None
    """The evaluation that measured, and when."""
    measured_at: str | None = None
    of_original: bool = False
    """The model without the recipe's steps was measured, as the recipe itself was not: its estimate and that of the
    recipe then differ by what the steps are predicted to change, and by nothing else."""

    @property
    def subject(self) -> str:
        """Return what was measured, for a sentence: empty, or ` of the model without steps`."""
        return " of the model without steps" if self.of_original else ""

    def correct(self, speed: Speed) -> Speed:
        """Return the speed scaled by the factors, with the ratio of each range's ends unchanged."""
        return Speed(
            scale(speed.ttft, self.ttft), scale(speed.tpot, self.tpot), scale(speed.output_tokens_per_s, self.rate)
        )


TTFT, TPOT, RATE = "ttft_ms", "tpot_ms", "output_tokens_per_s"


def geometric_middle(ends: tuple[float, float]) -> float:
    """Return the geometric mean of both ends: a range of factors is as wide above it as below."""
    return float((ends[0] * ends[1]) ** 0.5)


def compare_prediction(predicted: Speed, level: Level) -> tuple[PredictionPoint, ...]:
    """Return the prediction against one measured level, by metric; metrics that were not measured are left out."""
    pairs = (
        (TTFT, geometric_middle(predicted.ttft) * 1000, level.ttft_ms.p50 if level.ttft_ms else None),
        (TPOT, geometric_middle(predicted.tpot) * 1000, level.tpot_ms.p50 if level.tpot_ms else None),
        (RATE, geometric_middle(predicted.output_tokens_per_s), level.output_tokens_per_s or None),
    )
    return tuple(
        PredictionPoint(concurrency=level.concurrency, metric=metric, predicted=value, measured=measured)
        for metric, value, measured in pairs
        if measured
    )


def calibrate(
    pairs: Sequence[tuple[Speed, Level]],
    concurrency: int,
    *,
    evaluation: str | None = None,
    measured_at: str | None = None,
) -> Calibration | None:
    """Return the calibration from predictions for measured levels of one variant on one machine.

    None without a measurement.

    The level nearest to `concurrency` sets the factors.
    """
    points = tuple(point for predicted, level in pairs for point in compare_prediction(predicted, level))
    if not points:
        return None
    # 1. The level nearest to the requested one sets the factors.
    chosen = min({point.concurrency for point in points}, key=lambda level: (abs(level - concurrency), level))
    factors = {point.metric: point.measured / point.predicted for point in points if point.concurrency == chosen}
    calibration = Calibration(
        concurrency=chosen,
        ttft=factors.get(TTFT, 1.0),
        tpot=factors.get(TPOT, 1.0),
        rate=factors.get(RATE, 1.0),
        points=points,
        evaluation=evaluation,
        measured_at=measured_at,
    )
    # 2. The errors that remain once they are applied.
    after: list[PredictionPoint] = []
    for predicted, level in pairs:
        after += compare_prediction(calibration.correct(predicted), level)
    return calibration.model_copy(update={"after": tuple(after)})


def scale(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    return ends[0] * factor, ends[1] * factor
