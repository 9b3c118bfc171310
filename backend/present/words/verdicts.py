"""Verdicts in words: one for each metric, one sentence a variant and level, all of an evaluation as a grid, those of
tasks.

What came of a comparison is decided in `domain.evaluation`; here it is only said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Quality, VariantResult
from backend.domain.evaluation.outcome import EQUIVALENCE, NOT_THE_SERVERS, Cause, Obstacle, Outcome
from backend.domain.evaluation.tasks import TaskScore
from backend.domain.figures import code, factor_and_bounds, figure, times
from backend.domain.load.load import Load
from backend.present.words import quality_loss
from backend.present.words.measurements import quality_cost, quality_scores, throughput

NO_DIFFERENCE = "no significant difference"
TOO_NOISY = "too noisy to tell"
SAME_WITHIN = EQUIVALENCE
"""An interval that stays this near to 1 either way is called the same; a wider one that holds 1 is too noisy to
tell."""
TITLES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "inter-token latency",
    "client_latency_ms": "client latency",
    "output_tokens_per_s": "output tokens/s",
    "steady_output_tokens_per_s": "steady output tokens/s",
}
FASTER = {"better": "faster", "worse": "slower"}
OBSTACLES: dict[Cause, str] = {
    "not_as_asked": "not what was asked: something of {variant} was off while it was measured",
    "client_limited": "not comparable: the load generator, not the server, held back the figures of {variant}",
    "failed_requests": "not comparable: {count} of {of} requests to {variant} failed",
    "silent_answers": "not comparable: {count:,} of {of:,} answers of {variant} had no words or only one token",
    "replayed_prompts": "not comparable: {variant} answered from its prefix cache what the workload does not repeat",
    "uncounted_tokens": "no verdict: of {variant}, {count:,} of {of:,} answers came without a token count",
    "no_figures": "no verdict: no repeat gave a figure for both",
    "unequal_repeats": "no verdict: {count} repeats against {of} of the baseline",
    "missing_repeats": "no verdict: only {count} of {of} repeats gave a figure for both",
    "few_repeats": "too few repeats for a verdict ({count}, it takes {of})",
    "few_samples": "too few samples for a verdict ({count}, it takes {of})",
    "identical": "no verdict: every repeat gave exactly the baseline's figure, so there is no spread to test against",
    "no_spread": "no verdict: every repeat gave exactly the same ratio, so there is no spread to test against",
}
TASK_OBSTACLES: dict[Cause, str] = {
    "identical": "the same score on every sample",
    "no_spread": "no verdict: there is no spread to test against",
}

Kind = Literal["baseline", "better", "worse", "even", "noisy", "none"]
KINDS: dict[Outcome, Kind] = {
    "better": "better",
    "worse": "worse",
    "same": "even",
    "undecided": "none",
    "not_comparable": "none",
}
IN_SHORT: dict[Cause, str] = {
    **dict.fromkeys(NOT_THE_SERVERS, "not comparable"),
    "not_as_asked": "not what was asked",
    "few_repeats": "too few repeats",
    "uncounted_tokens": "no verdict, tokens not counted",
}


def metric_title(metric: str) -> str:
    """`ttft_ms_p50` and `ttft_ms` share a title; the median is the figure meant unless the name says otherwise."""
    base = next((name for name in TITLES if metric == name or metric.startswith(f"{name}_")), None)
    return TITLES[base] if base else metric.replace("_", " ")


def describe_comparison(row: Comparison) -> str:
    """`faster by 1.80x (95% 1.70 to 1.90)`, `no significant difference (...)`, or why there is no test, after the ratio
    where that compares anything."""
    if row.why is not None:
        reason = describe_obstacle(row.why)
        return (
            reason
            if row.ratio is None or row.outcome == "not_comparable"
            else f"{times(row.ratio, row.ci95)}, {reason}"
        )
    if not row.significant:
        return f"{sameness_words(row)} ({times(row.ratio or 1.0, row.ci95)}{more_blocks_words(row)})"
    return f"{FASTER[row.outcome]} by {times(*factor_above_one(row))}"


def more_blocks_words(row: Comparison) -> str:
    """`; about 12 more blocks would tell` of what is too noisy, where so many are worth measuring."""
    return "" if row.more_blocks is None else f"; about {row.more_blocks} more blocks would tell"


def factor_above_one(row: Comparison) -> tuple[float, tuple[float, float] | None]:
    """Ratio and interval as a factor above 1 either way: below it both turn over."""
    ratio = row.ratio or 1.0
    if ratio >= 1:
        return ratio, row.ci95
    return 1 / ratio, (1 / row.ci95[1], 1 / row.ci95[0]) if row.ci95 else None


def same_within(row: Comparison) -> float | None:
    """Of a test that named no difference: how far from 1 its interval reaches, as a share, where that is near enough to
    call the two the same; None where the interval is too wide to tell."""
    low, high = row.ci95 or (0.0, math.inf)
    apart = max(high, 1 / low if low else math.inf) - 1
    return apart if apart <= SAME_WITHIN else None


def describe_obstacle(why: Obstacle) -> str:
    """Why no test was made."""
    return OBSTACLES[why.cause].format(**{**dict(why), "variant": code(why.variant or "")})


def describe_task_score(score: TaskScore) -> str | None:
    """`worse (-0.300, 95% -0.412 to -0.188)`; None where it was not compared."""
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
    """The verdict on one variant at one level: throughput, then the latencies, then what it costs in quality.

    `rows` are the comparisons of one variant at one load, at least one.
    """
    ordered = sorted(rows, key=lambda row: not higher_is_better(row.metric))
    tested = [_tested(row) for row in ordered if row.why is None]
    # A reason that holds for several metrics is said once, with their ratios before it.
    reasons = dict.fromkeys(row.why for row in ordered if row.why is not None)
    untested = [_untested([row for row in ordered if row.why == why], why) for why in reasons]
    if untested and not tested:
        untested[0] = f"{code(rows[0].variant)} against {code(rows[0].baseline)}: {untested[0]}"
    return f"At {rows[0].load.words} {'; '.join([*tested, *untested, quality_cost(quality)])}."


def _tested(row: Comparison) -> str:
    name = metric_title(row.metric)
    if not higher_is_better(row.metric):
        return f"{name} {describe_comparison(row) if row.significant else sameness_words(row)}"
    if row.significant:
        factor, bounds = factor_and_bounds(row.ratio or 1.0, row.ci95)
        return f"{code(row.variant)} gives {factor} the {name} of {code(row.baseline)} (95% {bounds})"
    said = f"{name} of {code(row.variant)} against {code(row.baseline)} {sameness_words(row)}"
    return f"{said}, {times(row.ratio or 1.0, row.ci95)}{more_blocks_words(row)}"


def _untested(rows: list[Comparison], why: Obstacle) -> str:
    """`output tokens/s 1.31x, TTFT 0.52x, too few repeats ...`; no ratios where they would compare nothing."""
    if why.outcome == "not_comparable":
        return describe_obstacle(why)
    shown = [metric_title(row.metric) + ("" if row.ratio is None else f" {times(row.ratio, row.ci95)}") for row in rows]
    return f"{', '.join(shown)}, {describe_obstacle(why)}"


class LevelVerdict(NamedTuple):
    """One sentence, with the variant and load that it is about; `rows` are what it says."""

    variant: str
    load: Load
    rows: list[Comparison]
    text: str

    @property
    def throughput(self) -> Outcome | None:
        """Of output tokens/s; None where it was not compared."""
        return next((row.outcome for row in self.rows if higher_is_better(row.metric)), None)


def rows_by_level(evaluation: Evaluation) -> dict[tuple[str, Load], list[Comparison]]:
    """The comparisons of each variant and level."""
    comparisons: dict[tuple[str, Load], list[Comparison]] = {}
    for row in evaluation.comparison:
        comparisons.setdefault((row.variant, row.load), []).append(row)
    return comparisons


def level_verdicts(evaluation: Evaluation) -> list[LevelVerdict]:
    """One a variant and level that was compared with the baseline, in the order of variants, then levels."""
    compared = rows_by_level(evaluation)
    return [
        LevelVerdict(result.name, level.load, rows, level_sentence(rows, result.quality))
        for result in evaluation.variants[1:]
        for level in result.levels
        if (rows := compared.get((result.name, level.load)))
    ]


class GridCell(NamedTuple):
    """One variant at one level: what its throughput came to, and every latency that was decided another way."""

    kind: Kind
    words: str
    interval: str = ""
    but: str = ""


class GridRow(NamedTuple):
    """One variant; `cells` without the loads it was not measured at. Speed never stands without quality."""

    name: str
    cells: dict[Load, GridCell]
    quality: str


def grid_rows(evaluation: Evaluation) -> list[GridRow]:
    """One row a variant, the baseline first with its own output tokens/s."""
    compared = rows_by_level(evaluation)
    return [_row(compared, index, result) for index, result in enumerate(evaluation.variants)]


def _row(compared: Mapping[tuple[str, Load], list[Comparison]], index: int, result: VariantResult) -> GridRow:
    cells = {}
    for level in result.levels:  # its figure alone, where there is nothing to hold it against
        rows = compared.get((result.name, level.load))
        cells[level.load] = (
            _cell(rows) if rows and index else GridCell("none" if index else "baseline", throughput(level))
        )
    return GridRow(result.name, cells, quality_words(result.quality))


def quality_words(quality: Quality | None) -> str:
    """How grave the loss is with its figures: `answers change in 1 of 14 places; loss hardly measurable (KL 0.0004,
    ...)`."""
    said, scores = quality_loss.words(quality), quality_scores(quality)
    return f"{said} ({scores})" if said and scores else quality_cost(quality)


def _cell(rows: list[Comparison]) -> GridCell:
    first = next((row for row in rows if higher_is_better(row.metric)), rows[0])
    others = [row for row in rows if row is not first and row.significant and row.outcome != first.outcome]
    said = [f"{metric_title(row.metric)} {_in_short(row)[0]}" for row in others]
    words, interval = _in_short(first)
    kind: Kind = "noisy" if words == TOO_NOISY else KINDS[first.outcome]
    return GridCell(kind, words, interval, f"but {', '.join(said)}" if said else "")


def sameness_words(row: Comparison) -> str:
    """`the same within 4%`, or that it is too noisy to tell."""
    apart = same_within(row)
    return TOO_NOISY if apart is None else f"the same within {math.ceil(apart * 100 - 1e-9)}%"


def _in_short(row: Comparison) -> tuple[str, str]:
    """`1.80x faster` and `(1.70 to 1.90)`, `too noisy to tell` and its interval, or why there is no test."""
    if row.why is not None:
        return IN_SHORT.get(row.why.cause, "no verdict"), ""
    if not row.significant:
        return sameness_words(row), f"({factor_and_bounds(row.ratio or 1.0, row.ci95)[1]})"
    factor, bounds = factor_and_bounds(*factor_above_one(row))
    return f"{factor} {FASTER[row.outcome]}", f"({bounds})"
