"""Verdicts in words: one for each metric, one sentence for each variant and level, a grid of them, and those of tasks.

`domain.evaluation` decides the outcome of a comparison (`outcome.verdict_kind`); this module only says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Quality, VariantResult
from backend.domain.evaluation.outcome import NOT_THE_SERVERS, Cause, Obstacle, Outcome, VerdictKind
from backend.domain.evaluation.tasks.task_scores import TaskScore
from backend.domain.figures import code, factor_and_bounds, figure, times
from backend.domain.load.load import Load
from backend.present.words import quality_loss
from backend.present.words.measurements import quality_cost, quality_scores, throughput

NO_DIFFERENCE = "no significant difference"
TOO_NOISY = "too noisy to tell"
TITLES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "inter-token latency",
    "client_latency_ms": "client latency",
    "output_tokens_per_s": "output tokens/s",
    "steady_output_tokens_per_s": "steady output tokens/s",
}
OBSTACLES: dict[Cause, str] = {
    "not_as_asked": "not as configured: {variant} was not served as its recipe says while it was measured",
    "client_limited": "not comparable: the load generator, not the server, limited the figures of {variant}",
    "failed_requests": "not comparable: {count} of {of} requests to {variant} failed",
    "silent_answers": "not comparable: {count:,} of {of:,} answers of {variant} were empty or had only one token",
    "replayed_prompts": "not comparable: {variant} used its prefix cache for prompts that the workload does not repeat",
    "uncounted_tokens": "no verdict: {count:,} of {of:,} answers of {variant} had no token count",
    "no_figures": "no verdict: no repeat gave a figure for both variants",
    "unequal_repeats": "no verdict: {count} repeats against {of} of the baseline",
    "missing_repeats": "no verdict: only {count} of {of} repeats gave a figure for both variants",
    "few_repeats": "too few repeats for a verdict ({count} of {of})",
    "few_samples": "too few samples for a verdict ({count} of {of})",
    "identical": "no verdict: every repeat gave exactly the baseline's figure, so nothing can be tested",
    "no_spread": "no verdict: every repeat gave exactly the same ratio, so nothing can be tested",
}
TASK_OBSTACLES: dict[Cause, str] = {
    "identical": "the same score on every sample",
    "no_spread": "no verdict: every sample gave the same difference, so nothing can be tested",
}

CellKind = VerdictKind | Literal["baseline"]
IN_SHORT: dict[Cause, str] = {
    **dict.fromkeys(NOT_THE_SERVERS, "not comparable"),
    "not_as_asked": "not as configured",
    "few_repeats": "too few repeats",
    "uncounted_tokens": "no verdict, tokens not counted",
}


def metric_title(metric: str) -> str:
    """Return a metric's title. `ttft_ms_p50` and `ttft_ms` share one: the median, unless the name says otherwise."""
    base = next((name for name in TITLES if metric == name or metric.startswith(f"{name}_")), None)
    return TITLES[base] if base else metric.replace("_", " ")


def describe_comparison(row: Comparison) -> str:
    """Say one comparison: `faster by 1.80x (95% 1.70 to 1.90)`, `the same within 4% (...)`, or why there is no test,
    after the ratio where it compares anything."""
    if row.why is not None:
        reason = describe_obstacle(row.why)
        has_ratio = row.ratio is not None and row.outcome != "not_comparable"
        return f"{times(row.ratio or 1.0, row.ci95)}, {reason}" if has_ratio else reason
    if not row.significant:
        return f"{sameness_words(row)} ({times(row.ratio or 1.0, row.ci95)}{more_blocks_words(row)})"
    return f"{row.kind} by {times(*factor_above_one(row))}"


def more_blocks_words(row: Comparison) -> str:
    """Say `; about 12 more blocks would tell` where so many are worth measuring; else nothing."""
    return "" if row.more_blocks is None else f"; about {row.more_blocks} more blocks would tell"


def factor_above_one(row: Comparison) -> tuple[float, tuple[float, float] | None]:
    """Return ratio and interval as a factor above 1: both are inverted where the ratio is below 1."""
    ratio = row.ratio or 1.0
    if ratio >= 1:
        return ratio, row.ci95
    return 1 / ratio, (1 / row.ci95[1], 1 / row.ci95[0]) if row.ci95 else None


def describe_obstacle(why: Obstacle) -> str:
    """Say why no test was made."""
    return OBSTACLES[why.cause].format(**{**dict(why), "variant": code(why.variant or "")})


def describe_task_score(score: TaskScore) -> str | None:
    """Say `worse (-0.300, 95% -0.412 to -0.188)`. None where the score was not compared."""
    if score.why is not None:
        return TASK_OBSTACLES.get(score.why.cause) or describe_obstacle(score.why)
    if score.outcome is None or score.difference is None or score.ci95 is None:
        return None
    low, high = map(_signed, score.ci95)
    word = NO_DIFFERENCE if score.outcome == "same" else score.outcome
    return f"{word} ({_signed(score.difference)}, 95% {low} to {high})"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{figure(value)}"


def level_sentence(rows: list[Comparison], quality: Quality | None) -> str:
    """Write the verdict on one variant at one level: throughput, then latencies, then the loss of quality.

    `rows` are the comparisons of one variant at one load, at least one.
    """
    # 1. Tested metrics, throughput first.
    ordered = sorted(rows, key=lambda row: not higher_is_better(row.metric))
    tested = [_tested_words(row) for row in ordered if row.why is None and not row.secondary]
    secondary = ", ".join(_tested_words(row) for row in ordered if row.why is None and row.secondary)
    tested += [f"secondary: {secondary}"] if secondary else []
    # 2. Untested metrics: a reason that several share is said once, after their ratios.
    untested = []
    for why in dict.fromkeys(row.why for row in ordered if row.why is not None):
        untested.append(_untested_words([row for row in ordered if row.why == why], why))
    # 3. The names, which `_tested_words` says of the throughput.
    if untested and not tested:
        untested[0] = f"{code(rows[0].variant)} against {code(rows[0].baseline)}: {untested[0]}"
    return f"At {rows[0].load.words} {'; '.join([*tested, *untested, quality_cost(quality)])}."


def _tested_words(row: Comparison) -> str:
    name = metric_title(row.metric)
    if not higher_is_better(row.metric):
        return f"{name} {describe_comparison(row) if row.significant else sameness_words(row)}"
    if row.significant:
        factor, bounds = factor_and_bounds(row.ratio or 1.0, row.ci95)
        return f"{code(row.variant)} gives {factor} the {name} of {code(row.baseline)} (95% {bounds})"
    names = f"{name} of {code(row.variant)} against {code(row.baseline)}"
    return f"{names} {sameness_words(row)}, {times(row.ratio or 1.0, row.ci95)}{more_blocks_words(row)}"


def _untested_words(rows: list[Comparison], why: Obstacle) -> str:
    """Say `output tokens/s 1.31x, TTFT 0.52x, too few repeats ...`, without ratios where they compare nothing."""
    if why.outcome == "not_comparable":
        return describe_obstacle(why)
    shown = []
    for row in rows:
        ratio = "" if row.ratio is None else f" {times(row.ratio, row.ci95)}"
        shown.append(f"{metric_title(row.metric)}{ratio}")
    return f"{', '.join(shown)}, {describe_obstacle(why)}"


class LevelVerdict(NamedTuple):
    """One sentence about a variant at a load; `rows` are the comparisons that it says."""

    variant: str
    load: Load
    rows: list[Comparison]
    text: str

    @property
    def throughput(self) -> Outcome | None:
        """The outcome of output tokens/s; None where it was not compared."""
        return next((row.outcome for row in self.rows if higher_is_better(row.metric)), None)


def rows_by_level(evaluation: Evaluation) -> dict[tuple[str, Load], list[Comparison]]:
    """Group the comparisons by variant and load."""
    comparisons: dict[tuple[str, Load], list[Comparison]] = {}
    for row in evaluation.comparison:
        comparisons.setdefault((row.variant, row.load), []).append(row)
    return comparisons


def level_verdicts(evaluation: Evaluation) -> list[LevelVerdict]:
    """Write one verdict for each variant and level that was compared, in the order of variants, then levels."""
    compared = rows_by_level(evaluation)
    verdicts = []
    for result in evaluation.variants[1:]:
        for level in result.levels:
            rows = compared.get((result.name, level.load))
            if rows:
                verdicts.append(LevelVerdict(result.name, level.load, rows, level_sentence(rows, result.quality)))
    return verdicts


class GridCell(NamedTuple):
    """One variant at one level: the verdict on its throughput, and in `but` every latency with another verdict."""

    kind: CellKind
    words: str
    interval: str = ""
    but: str = ""

    @property
    def text(self) -> str:
        """`1.80x faster (1.70 to 1.90); but TTFT slower`."""
        return "; ".join(filter(None, (f"{self.words} {self.interval}".rstrip(), self.but)))


class GridRow(NamedTuple):
    """One variant; `cells` without the loads that it was not measured at. Speed is never shown without quality."""

    name: str
    cells: dict[Load, GridCell]
    quality: str


def grid_rows(evaluation: Evaluation) -> list[GridRow]:
    """Make one row for each variant, the baseline first with its own output tokens/s."""
    compared = rows_by_level(evaluation)
    return [_grid_row(compared, index, result) for index, result in enumerate(evaluation.variants)]


def _grid_row(compared: Mapping[tuple[str, Load], list[Comparison]], index: int, result: VariantResult) -> GridRow:
    cells = {}
    for level in result.levels:
        rows = compared.get((result.name, level.load))
        if index == 0:
            cells[level.load] = GridCell("baseline", throughput(level))
        elif rows:
            cells[level.load] = _grid_cell(rows)
        else:  # the baseline was not measured at this load
            cells[level.load] = GridCell("none", throughput(level))
    return GridRow(result.name, cells, quality_words(result.quality))


def quality_words(quality: Quality | None) -> str:
    """Say how large the loss is, with its figures: `same top token at 93% of positions; loss hardly measurable
    (KL 0.0004, ...)`."""
    words, scores = quality_loss.words(quality), quality_scores(quality)
    return f"{words} ({scores})" if words and scores else quality_cost(quality)


def _grid_cell(rows: list[Comparison]) -> GridCell:
    first = next((row for row in rows if higher_is_better(row.metric)), rows[0])
    others = [row for row in rows if row is not first and row.significant and row.outcome != first.outcome]
    exceptions = ", ".join(f"{metric_title(row.metric)} {_short_words(row)[0]}" for row in others)
    words, interval = _short_words(first)
    return GridCell(first.kind, words, interval, f"but {exceptions}" if exceptions else "")


def sameness_words(row: Comparison) -> str:
    """Say `the same within 4%`, or that the figures are too noisy to tell."""
    if row.kind == "noisy" or row.ci95 is None:
        return TOO_NOISY
    low, high = row.ci95
    distance = max(high, 1 / low if low else math.inf) - 1
    return f"the same within {math.ceil(distance * 100 - 1e-9)}%" if math.isfinite(distance) else TOO_NOISY


def _short_words(row: Comparison) -> tuple[str, str]:
    """Return `1.80x faster` and `(1.70 to 1.90)`, `too noisy to tell` and its interval, or why there is no test."""
    if row.why is not None:
        return IN_SHORT.get(row.why.cause, "no verdict"), ""
    if not row.significant:
        return sameness_words(row), f"({factor_and_bounds(row.ratio or 1.0, row.ci95)[1]})"
    factor, bounds = factor_and_bounds(*factor_above_one(row))
    return f"{factor} {row.kind}", f"({bounds})"
