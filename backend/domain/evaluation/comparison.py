"""Tests which differences between variants are real: paired intervals, corrected for their number.

Pure arithmetic on the `blocks` of levels.

Method. Slice s of a variant and slice s of the baseline asked the same prompts, one right after the other
(`order.cut_slices`), so the test is paired: d_s = ln(variant_s / baseline_s), an interval on the mean of d over slices
that allows for what neighbouring slices share (`maths.serial_mean`), exponentiated to a ratio of geometric means.

One figure decides: output tokens/s (PRIMARY). Its tests in one evaluation (levels x variants) form one family,
corrected by Holm's step-down procedure (S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian
Journal of Statistics 6, 1979). The interval shown is the one at the level at which Holm tested that hypothesis: 1 -
0.05 / (m - i + 1) for the i-th smallest p-value where it was rejected, and the level of the first one not rejected for
all that follow. So the interval leaves out 1.0 exactly where the verdict names a direction, and each covers its true
ratio with at least 95%. The latencies are secondary: each is tested by itself, so one in twenty names a difference
that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple, TypeGuard

from backend.domain.evaluation.document import Comparison, Level, VariantResult
from backend.domain.evaluation.evidence.schema import failed_findings
from backend.domain.evaluation.outcome import EQUIVALENCE, Obstacle, Outcome, interval_outcome
from backend.domain.evaluation.soundness import has_many_errors, is_replayed, is_silent
from backend.domain.load.load import Load
from backend.domain.load.options import BLOCKS_FOR_VERDICT
from backend.domain.maths.intervals import HolmResult, holm
from backend.domain.maths.sample_size import pairs_needed
from backend.domain.maths.serial_mean import SerialMean
from backend.domain.maths.student_t import SIGNIFICANCE

HEADLINE = ("ttft_ms", "tpot_ms", "client_latency_ms", "output_tokens_per_s")
"""Metrics that are tested, and charted beside imported ones. Price is not: it is the hourly price divided by the
throughput."""
PRIMARY = "output_tokens_per_s"
"""The metric that decides whether a variant is faster; only its tests are corrected for their number."""
BLOCKS_FOR_INTERVAL = 3
ROUNDING = 1e-9
"""Log ratios that differ by less than this are the same figure."""


class _Pair(NamedTuple):
    """One hypothesis before the family is known. `logs` are the usable log ratios, one for each slice."""

    level: Level
    metric: str
    baseline: str
    variant: str
    logs: list[float]
    obstacle: Obstacle | None
    """Why no test can be made; None where one can."""

    @property
    def ratio(self) -> float | None:
        return _exp(fmean(self.logs)) if self.logs else None

    @property
    def means(self) -> SerialMean:
        return SerialMean(tuple(self.logs))

    @property
    def is_primary(self) -> bool:
        return is_primary(self.metric)

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the interval of the ratio at confidence 1 - alpha."""
        log_interval = self.means.interval(alpha)
        return log_interval and (_exp(log_interval[0]), _exp(log_interval[1]))


def compare(
    results: Sequence[VariantResult], alpha: float = SIGNIFICANCE, same_within: float = EQUIVALENCE
) -> list[Comparison]:
    """Compare each variant with the first, at every load that both have, on every headline metric.

    The family of primary tests has level `alpha`, and so has each secondary test. `p_value` is Holm-adjusted for the
    primary metric, None where no test was made; `same_within` is the share by which ratios may differ from 1 and count
    as the same. `ci95` is then None too or, for 3 or 4 slices, the plain 95% interval.
    The p50 over a slice's requests is compared, or its mean where it has none. Never raises on odd figures: `why` says
    what prevents a test.
    """
    # 1. Every hypothesis of the family.
    pairs = [pair for result in results[1:] for pair in _pairs(results[0], result)]
    # 2. Test those that can be tested, and correct the primary ones for their number.
    p_values: dict[int, float] = {}
    for index, pair in enumerate(pairs):
        p_value = pair.means.p_value if pair.obstacle is None else None
        if p_value is not None:
            p_values[index] = p_value
    primary = [index for index in p_values if pairs[index].is_primary]
    tests = {index: HolmResult(p_value, alpha) for index, p_value in p_values.items()}
    tests |= zip(primary, holm([p_values[index] for index in primary], alpha), strict=True)
    # 3. Their outcomes.
    return [_comparison(pair, tests.get(index), alpha, same_within) for index, pair in enumerate(pairs)]


def log_ratios(results: Sequence[VariantResult], row: Comparison) -> list[float]:
    """Return the log ratios behind a comparison of these results, one for each slice."""
    baseline = _blocks_at(results, row.baseline, row.load)
    return _log_ratios(row.metric, baseline, _blocks_at(results, row.variant, row.load))[0]


def _blocks_at(results: Sequence[VariantResult], name: str, load: Load) -> list[dict[str, float]]:
    result = next(result for result in results if result.name == name)
    return next(level.blocks for level in result.levels if level.load == load)


def _pairs(baseline: VariantResult, result: VariantResult) -> Iterator[_Pair]:
    """Yield the hypotheses of one variant: every headline metric at every load that the baseline has too."""
    baseline_levels = {level.load: level for level in baseline.levels}
    # 1. What concerns the variant as a whole.
    misconfigured = next((each.name for each in (baseline, result) if failed_findings(each.findings)), None)
    variant_obstacle = Obstacle(cause="not_as_asked", variant=misconfigured) if misconfigured else None
    for level in result.levels:
        baseline_level = baseline_levels.get(level.load)
        if baseline_level is None:
            continue
        # 2. What concerns a level.
        level_obstacle = (
            variant_obstacle or _level_obstacle(baseline.name, baseline_level) or _level_obstacle(result.name, level)
        )
        # 3. What concerns a metric.
        for headline in HEADLINE:
            metric = _metric(headline, baseline_level, level)
            uncounted = _uncounted(headline, baseline.name, baseline_level) or _uncounted(headline, result.name, level)
            logs: list[float] = []
            metric_obstacle = uncounted
            if uncounted is None:
                logs, metric_obstacle = _log_ratios(metric, baseline_level.blocks, level.blocks)
            yield _Pair(level, metric, baseline.name, result.name, logs, level_obstacle or metric_obstacle)


def _metric(headline: str, *levels: Level) -> str:
    median = f"{headline}_p50"
    return median if all(any(median in block for block in level.blocks) for level in levels) else headline


def is_primary(metric: str) -> bool:
    """Tell whether the metric, in any statistic, is the one that decides."""
    return metric.startswith(PRIMARY)


def higher_is_better(metric: str) -> bool:
    """Tell whether a metric is a throughput, in any statistic; a latency is better where it is lower."""
    return "tokens_per_s" in metric


def _level_obstacle(name: str, level: Level) -> Obstacle | None:
    if level.client_limited:
        return Obstacle(cause="client_limited", variant=name)
    if has_many_errors(level):
        return Obstacle(cause="failed_requests", variant=name, count=level.invocation_errors, of=level.invocations)
    if is_silent(level):
        silent = level.empty_responses - level.tokenizer_failed + level.short_responses
        return Obstacle(cause="silent_answers", variant=name, count=silent, of=level.answers)
    return Obstacle(cause="replayed_prompts", variant=name) if is_replayed(level) else None


def _uncounted(headline: str, name: str, level: Level) -> Obstacle | None:
    """Return the obstacle where the level has no figure because answers came without token counts."""
    if getattr(level, headline) is None and level.tokenizer_failed:
        return Obstacle(cause="uncounted_tokens", variant=name, count=level.tokenizer_failed, of=level.answers)
    return None


def _log_ratios(
    metric: str, baseline: Sequence[dict[str, float]], variant: Sequence[dict[str, float]]
) -> tuple[list[float], Obstacle | None]:
    """Return the usable log ratios, and what prevents a test of them."""
    # 1. The ratios.
    pairs = [(a.get(metric), b.get(metric)) for a, b in zip(baseline, variant, strict=False)]
    logs = [math.log(b) - math.log(a) for a, b in pairs if _usable(a) and _usable(b)]
    # 2. Whether there are enough, and they vary.
    if not logs:
        return [], Obstacle(cause="no_figures")
    if len(baseline) != len(variant):
        return logs, Obstacle(cause="unequal_repeats", count=len(variant), of=len(baseline))
    if len(logs) < len(pairs):
        return logs, Obstacle(cause="missing_repeats", count=len(logs), of=len(pairs))
    if len(logs) < BLOCKS_FOR_VERDICT:
        return logs, Obstacle(cause="few_repeats", count=len(logs), of=BLOCKS_FOR_VERDICT)
    return logs, _no_spread(logs)


def _no_spread(logs: list[float]) -> Obstacle | None:
    if max(logs) - min(logs) > ROUNDING:
        return None
    return Obstacle(cause="identical" if abs(logs[0]) <= ROUNDING else "no_spread")


def _usable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def _comparison(pair: _Pair, tested: HolmResult | None, alpha: float, same_within: float) -> Comparison:
    """Make the document's row of a pair; one without a test has an obstacle."""
    ratio, why = pair.ratio, pair.obstacle
    better = ratio is not None and (ratio > 1) == higher_is_better(pair.metric)
    interval = pair.interval(tested.alpha) if tested else _plain_interval(pair)
    outcome: Outcome = why.outcome if why else interval_outcome(interval or (0.0, math.inf), better, same_within)
    if tested and outcome in {"better", "worse"} and tested.p_adjusted > alpha:
        outcome = "undecided"  # by rounding alone: Holm's interval leaves out 1 exactly where it rejects
    can_be_decided = tested is not None and outcome == "undecided"
    return Comparison(
        load=pair.level.load,
        metric=pair.metric,
        baseline=pair.baseline,
        variant=pair.variant,
        outcome=outcome,
        why=why,
        ratio=ratio,
        ci95=interval,
        p_value=tested.p_adjusted if tested else None,
        more_blocks=_more_blocks(pair, tested.alpha / 2, same_within) if tested and can_be_decided else None,
        secondary=not pair.is_primary,
    )


def _more_blocks(pair: _Pair, alpha: float, same_within: float) -> int | None:
    """Return how many more blocks would decide the pair: an even number, since every second block is in reverse order.

    `alpha` is the level of the test that will follow (`sequential_tests`).
    """
    # 1. The slices that a decision takes.
    slices = len(pair.logs)
    needed = pairs_needed(fmean(pair.logs), pair.means.spread, slices, math.log(1 + same_within), alpha)
    if needed is None:
        return None
    # 2. The blocks that have so many.
    missing = math.ceil((needed - slices) * pair.level.repeats / slices)
    return max(2, missing + missing % 2)


def _plain_interval(pair: _Pair) -> tuple[float, float] | None:
    """Return the uncorrected interval, which decides nothing, where only the number of repeats prevents a test."""
    few = pair.obstacle is not None and pair.obstacle.cause == "few_repeats"
    if not few or len(pair.logs) < BLOCKS_FOR_INTERVAL or _no_spread(pair.logs):
        return None
    return pair.interval(SIGNIFICANCE)


def _exp(value: float) -> float:
    """Return the exponential, limited far beyond any real ratio so that JSON can hold it."""
    return math.exp(max(-700.0, min(700.0, value)))
