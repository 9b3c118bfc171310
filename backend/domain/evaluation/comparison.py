"""Which differences between variants are real: paired intervals over repeats, corrected for how many were looked at.

Pure arithmetic on the `blocks` of levels. Knows nothing of how they were measured, and says nothing in words.

Method. Repeat b of a variant and repeat b of the baseline were run side by side (`order.schedule`), so the test is
paired: d_b = ln(variant_b / baseline_b), a t-interval on the mean of d over blocks, exponentiated to a ratio of
geometric means. All tests of one evaluation (metrics x levels x variants) form one family, corrected by Holm's
step-down procedure (S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of
Statistics 6, 1979). The interval shown is the one at the level at which Holm tested that hypothesis: 1 - 0.05 / (m - i
+ 1) for the i-th smallest p-value where it was rejected, and the level of the first one not rejected for all that
follow. So the interval leaves out 1.0 exactly where the verdict names a direction, and each covers its true ratio with
at least 95%.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple, TypeGuard

from backend.domain.evaluation.document import Comparison, Level, VariantResult
from backend.domain.evaluation.evidence.schema import failed_findings
from backend.domain.evaluation.outcome import EQUIVALENCE, Obstacle, Outcome, interval_outcome
from backend.domain.evaluation.soundness import has_many_errors, is_replayed, is_silent
from backend.domain.load.options import BLOCKS_FOR_VERDICT
from backend.domain.maths.intervals import HolmResult, holm
from backend.domain.maths.paired_scores import PairedMeans
from backend.domain.maths.sample_size import pairs_needed
from backend.domain.maths.student_t import SIGNIFICANCE

HEADLINE = ("ttft_ms", "tpot_ms", "client_latency_ms", "output_tokens_per_s")
"""Price is not tested apart: it is the hourly price over the throughput."""
BLOCKS_FOR_INTERVAL = 3
ROUNDING = 1e-9
"""Log ratios that differ by less than this are the same figure."""


class _Pair(NamedTuple):
    """One hypothesis before the family is known. `logs` are the usable log ratios, one a block."""

    level: Level
    metric: str
    baseline: str
    variant: str
    logs: list[float]
    obstacle: Obstacle | None
    """Why no test can be made, whatever the figures say."""

    @property
    def ratio(self) -> float | None:
        return _exp(fmean(self.logs)) if self.logs else None

    @property
    def means(self) -> PairedMeans:
        return PairedMeans(tuple(self.logs))

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """The t-interval of the ratio at confidence 1 - alpha."""
        found = self.means.interval(alpha)
        return found and (_exp(found[0]), _exp(found[1]))


def compare(results: Sequence[VariantResult], alpha: float = SIGNIFICANCE) -> list[Comparison]:
    """Each variant against the first, at every load that both have, on every headline metric; the family is tested at
    `alpha`.

    `p_value` is Holm-adjusted, None where no test was made; `ci95` then is None too, or, for 3 or 4 repeats, the plain
    95% interval. The p50 over a block's requests is compared, its mean where it has none. Never raises on odd figures:
    `why` says what stands in the way.
    """
    pairs = [pair for result in results[1:] for pair in _pairs(results[0], result)]
    testable = {n: p for n, pair in enumerate(pairs) if pair.obstacle is None and (p := pair.means.p_value) is not None}
    outcomes = dict(zip(testable, holm([*testable.values()], alpha), strict=True))
    return [_comparison(pair, outcomes.get(index), alpha) for index, pair in enumerate(pairs)]


def log_ratios(results: Sequence[VariantResult], row: Comparison) -> list[float]:
    """Those that a comparison of these results is of, one a block."""
    baseline, variant = (
        next(
            level.blocks
            for result in results
            if result.name == name
            for level in result.levels
            if level.load == row.load
        )
        for name in (row.baseline, row.variant)
    )
    return _log_ratios(row.metric, baseline, variant)[0]


def _pairs(baseline: VariantResult, result: VariantResult) -> Iterator[_Pair]:
    levels = {level.load: level for level in baseline.levels}
    off_there = next((each.name for each in (baseline, result) if failed_findings(each.findings)), None)
    not_as_asked = Obstacle(cause="not_as_asked", variant=off_there) if off_there else None
    for level in result.levels:
        against = levels.get(level.load)
        if against is None:
            continue
        level_obstacle = not_as_asked or _level_obstacle(baseline.name, against) or _level_obstacle(result.name, level)
        for headline in HEADLINE:
            metric = _metric(headline, against, level)
            unknown = _unknown(headline, baseline.name, against) or _unknown(headline, result.name, level)
            logs, metric_obstacle = ([], unknown) if unknown else _log_ratios(metric, against.blocks, level.blocks)
            obstacle = level_obstacle or metric_obstacle
            yield _Pair(level, metric, baseline.name, result.name, logs, obstacle)


def _metric(headline: str, *levels: Level) -> str:
    median = f"{headline}_p50"
    return median if all(any(median in block for block in level.blocks) for level in levels) else headline


def higher_is_better(metric: str) -> bool:
    """Of a throughput, in any statistic of it; a latency is better where it is lower."""
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


def _unknown(headline: str, name: str, level: Level) -> Obstacle | None:
    """Some repeats may have a figure where others have none: the level has none then."""
    if getattr(level, headline) is None and level.tokenizer_failed:
        return Obstacle(cause="uncounted_tokens", variant=name, count=level.tokenizer_failed, of=level.answers)
    return None


def _log_ratios(
    metric: str, baseline: Sequence[dict[str, float]], variant: Sequence[dict[str, float]]
) -> tuple[list[float], Obstacle | None]:
    """The usable log ratios and what stands in the way of a test of them."""
    pairs = [(a.get(metric), b.get(metric)) for a, b in zip(baseline, variant, strict=False)]
    logs = [math.log(b) - math.log(a) for a, b in pairs if _usable(a) and _usable(b)]
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


def _comparison(pair: _Pair, tested: HolmResult | None, alpha: float) -> Comparison:
    """`pair` has an obstacle wherever it was not `tested`."""
    ratio, why = pair.ratio, pair.obstacle
    better = ratio is not None and (ratio > 1) == higher_is_better(pair.metric)
    interval = pair.interval(tested.alpha) if tested else _plain_interval(pair)
    found: Outcome = why.outcome if why else interval_outcome(interval or (0.0, math.inf), better)
    if tested and found in {"better", "worse"} and tested.p_adjusted > alpha:
        found = "undecided"  # by rounding alone: Holm's interval leaves out 1 exactly where it rejects
    return Comparison(
        load=pair.level.load,
        metric=pair.metric,
        baseline=pair.baseline,
        variant=pair.variant,
        outcome=found,
        why=why,
        ratio=ratio,
        ci95=interval,
        p_value=tested.p_adjusted if tested else None,
        more_blocks=_more_blocks(pair, tested.alpha / 2) if tested and found == "undecided" else None,
    )


def _more_blocks(pair: _Pair, alpha: float) -> int | None:
    """An even number, as an order of variants and its reverse take turns. `alpha`: of the test when they are in
    (`sequential_tests`)."""
    blocks = len(pair.logs)
    needed = pairs_needed(fmean(pair.logs), stdev(pair.logs), blocks, math.log(1 + EQUIVALENCE), alpha)
    return None if needed is None else max(2, needed - blocks + (needed - blocks) % 2)


def _plain_interval(pair: _Pair) -> tuple[float, float] | None:
    """Uncorrected: nothing is decided from it. Only where the number of repeats is all that is missing."""
    few = pair.obstacle is not None and pair.obstacle.cause == "few_repeats"
    if not few or len(pair.logs) < BLOCKS_FOR_INTERVAL or _no_spread(pair.logs):
        return None
    return pair.interval(SIGNIFICANCE)


def _exp(value: float) -> float:
    """Far beyond any real ratio the exponential would overflow; both ends stay finite, so that JSON can hold them."""
    return math.exp(max(-700.0, min(700.0, value)))
