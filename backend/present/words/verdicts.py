"""Figures put into words: ratios with their direction, quality costs, provenance, and one verdict sentence a level and variant.

Knows nothing of how a figure was measured or tested; `comparison` decides, this module only says it.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, EvaluateOptions, Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.tasks import TaskScore
from backend.domain.evaluation.verdict import Cause, Obstacle, Outcome
from backend.domain.figures import counted, figure, share, small, times
from backend.domain.load.load import Load

NO_DIFFERENCE = "no significant difference"
INTERLEAVE = {
    "resident": "resident: all servers up, one loaded at a time, in ABBA order",
    "restart": "restart: one server up at a time, in ABBA order",
}


TITLES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "inter-token latency",
    "client_latency_ms": "client latency",
    "output_tokens_per_s": "output tokens/s",
    "steady_output_tokens_per_s": "steady output tokens/s",
}
FASTER = {"better": "faster", "worse": "slower"}
OBSTACLES: dict[Cause, str] = {
    "client_limited": "not comparable: the load generator, not the server, held back the figures of `{variant}`",
    "failed_requests": "not comparable: {count} of {of} requests to `{variant}` failed",
    "uncounted_tokens": "no verdict: of `{variant}`, {count:,} of {of:,} answers came without a token count",
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


def title(metric: str) -> str:
    """`ttft_ms_p50` and `ttft_ms` share a title; the median is the figure meant unless the name says otherwise."""
    base = next((name for name in TITLES if metric == name or metric.startswith(f"{name}_")), None)
    return TITLES[base] if base else metric.replace("_", " ")


def throughput(level: Level) -> str:
    """`48.2 tokens/s`; where answers did not tell their tokens `1.90 requests/s, tokens not counted`."""
    if level.output_tokens_per_s is not None:
        return f"{figure(level.output_tokens_per_s)} tokens/s"
    requests = [] if level.requests_per_s is None else [f"{figure(level.requests_per_s)} requests/s"]
    return ", ".join([*requests, "tokens not counted"])


def load_asked(options: EvaluateOptions) -> tuple[str, str]:
    """What load was asked for, as a title and words: (`Concurrency`, `1, 4`) or (`Requests/s`, `2, 8, at random moments`)."""
    moments = ", at random moments" if options.process == "poisson" else ""
    if options.trace:
        found = ("Trace", "each request at its own time")
    elif options.ramp is not None:
        found = ("Requests/s", f"{options.ramp[0]:g} to {options.ramp[1]:g} over {options.seconds:g} s{moments}")
    elif options.rate:
        found = ("Requests/s", ", ".join(f"{rate:g}" for rate in options.rate) + moments)
    else:
        found = ("Concurrency", ", ".join(map(str, options.concurrency)))
    searched = f", from there the highest that keeps {' and '.join(options.sweep)}" if options.sweep else ""
    return found[0], found[1] + searched


def quality_cost(quality: Quality | None) -> str:
    """What a variant costs in quality, or `quality not measured`: speed is never shown without one of them.

    `KL 0.0004, perplexity 61.9 against 61.8, greedy match 98.2%, exact match 91.7%, token F1 97.0% over 12 answers`; with the
    intervals of the answers where they are all there is.
    """
    scores = quality_scores(quality)
    if quality is None or (quality.answers is None and (scores or quality.greedy_match is None)):
        return scores or "quality not measured"
    agreed = answers_agreement(quality, intervals=not scores)
    return ", ".join([scores, agreed] if scores else [agreed, "KL not measured"])


def quality_scores(quality: Quality | None) -> str:
    """`KL 0.0004, perplexity 61.9 against 61.8`; empty where neither was scored."""
    parts = []
    if quality is None:
        return ""
    if quality.kl_mean is not None:
        parts.append(f"KL {small(quality.kl_mean)}")
    if quality.perplexity is not None:
        against = f" against {quality.perplexity_original:.2f}" if quality.perplexity_original is not None else ""
        parts.append(f"perplexity {quality.perplexity:.2f}{against}")
    return ", ".join(parts)


def answers_agreement(quality: Quality, *, intervals: bool = True) -> str:
    """How far greedy answers agree with the baseline's: `exact match 91.7% (95% 64.6 to 98.5), ... over 12 answers`."""
    if quality.answers == 0:
        return f"none of {quality.answers_asked} answers could be compared"
    of = "" if quality.answers is None else f" over {_compared(quality.answers, quality.answers_asked)}"
    return ", ".join(f"{name} {share(*each, intervals=intervals)}" for name, each in agreed_shares(quality).items()) + of


def agreed_shares(quality: Quality) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """(share, 95% interval) by name, those that were measured."""
    known = {
        "greedy match": (quality.greedy_match, quality.greedy_ci95),
        "exact match": (quality.exact_match, quality.exact_ci95),
        "token F1": (quality.token_f1, quality.token_f1_ci95),
    }
    return {name: (value, interval) for name, (value, interval) in known.items() if value is not None}


def _compared(compared: int, asked: int | None) -> str:
    """`12 answers`, or `10 of 12 answers` where requests failed."""
    return counted(compared, "answer") if asked in {None, compared} else f"{compared} of {asked} answers"


def verdict(row: Comparison) -> str:
    """`faster by 1.80x (95% 1.70 to 1.90)`, `no significant difference (...)`, or why there is no test, after the ratio where
    that compares anything."""
    if row.why is not None:
        reason = obstacle(row.why)
        return reason if row.ratio is None or row.outcome == "not_comparable" else f"{times(row.ratio, row.ci95)}, {reason}"
    if row.outcome == "same":
        return f"{NO_DIFFERENCE} ({times(row.ratio or 1.0, row.ci95)})"
    return f"{FASTER[row.outcome]} by {times(*upright(row))}"


def upright(row: Comparison) -> tuple[float, tuple[float, float] | None]:
    """Ratio and interval as a factor above 1 either way: below it both turn over."""
    ratio = row.ratio or 1.0
    if ratio >= 1:
        return ratio, row.ci95
    return 1 / ratio, (1 / row.ci95[1], 1 / row.ci95[0]) if row.ci95 else None


def obstacle(why: Obstacle) -> str:
    """Why no test was made."""
    return OBSTACLES[why.cause].format(**dict(why))


def task_verdict(score: TaskScore) -> str | None:
    """`worse (-0.300, 95% -0.412 to -0.188)`; None where it was not compared."""
    if score.why is not None:
        return TASK_OBSTACLES.get(score.why.cause) or obstacle(score.why)
    if score.outcome is None or score.difference is None or score.ci95 is None:
        return None
    low, high = map(_signed, score.ci95)
    word = NO_DIFFERENCE if score.outcome == "same" else score.outcome
    return f"{word} ({_signed(score.difference)}, 95% {low} to {high})"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{figure(value)}"


def sentence(rows: list[Comparison], quality: Quality | None) -> str:
    """The verdict on one variant at one level: throughput, then the latencies, then what it costs in quality.

    `rows` are the comparisons of one variant at one load, at least one.
    """
    ordered = sorted(rows, key=lambda row: not higher_is_better(row.metric))
    tested = [_tested(row) for row in ordered if row.why is None]
    # A reason that holds for several metrics is said once, with their ratios before it.
    reasons = dict.fromkeys(row.why for row in ordered if row.why is not None)
    untested = [_untested([row for row in ordered if row.why == why], why) for why in reasons]
    if untested and not tested:
        untested[0] = f"`{rows[0].variant}` against `{rows[0].baseline}`: {untested[0]}"
    return f"At {rows[0].load.words} {'; '.join([*tested, *untested, quality_cost(quality)])}."


def _tested(row: Comparison) -> str:
    name = title(row.metric)
    if not higher_is_better(row.metric):
        return f"{name} {verdict(row) if row.significant else NO_DIFFERENCE}"
    shown = times(row.ratio or 1.0, row.ci95)
    if row.significant:
        factor, _, interval = shown.partition(" ")
        return f"`{row.variant}` gives {factor} the {name} of `{row.baseline}` {interval}"
    return f"`{row.variant}` shows {NO_DIFFERENCE} in {name} from `{row.baseline}`, {shown}"


def _untested(rows: list[Comparison], why: Obstacle) -> str:
    """`output tokens/s 1.31x, TTFT 0.52x, too few repeats ...`; no ratios where they would compare nothing."""
    if why.outcome == "not_comparable":
        return obstacle(why)
    shown = [title(row.metric) + ("" if row.ratio is None else f" {times(row.ratio, row.ci95)}") for row in rows]
    return f"{', '.join(shown)}, {obstacle(why)}"


class Verdict(NamedTuple):
    """One sentence, with the variant and load that it is about; `rows` are what it says."""

    variant: str
    load: Load
    rows: list[Comparison]
    text: str

    @property
    def throughput(self) -> Outcome | None:
        """Of output tokens/s; None where it was not compared."""
        return next((row.outcome for row in self.rows if higher_is_better(row.metric)), None)


def by_level(evaluation: Evaluation) -> dict[tuple[str, Load], list[Comparison]]:
    """The comparisons of each variant and level."""
    found: dict[tuple[str, Load], list[Comparison]] = {}
    for row in evaluation.comparison:
        found.setdefault((row.variant, row.load), []).append(row)
    return found


def verdicts(evaluation: Evaluation) -> list[Verdict]:
    """One a variant and level that was compared with the baseline, in the order of variants, then levels."""
    found, compared = [], by_level(evaluation)
    for result in evaluation.variants[1:]:
        for level in result.levels:
            rows = compared.get((result.name, level.load))
            if rows:
                found.append(Verdict(result.name, level.load, rows, sentence(rows, result.quality)))
    return found


def scored(result: VariantResult) -> str:
    """Which weights perplexity and KL were computed on."""
    quality = result.quality
    if quality is None:
        return "Not scored."
    says = {
        "dequantized": "The saved artifact's weights, dequantized, in the reference model; not the served kernels.",
        "original": "The original weights, which this variant serves unchanged.",
        "unavailable": "Not scored: the weights were not at hand.",
    }[quality.scored]
    return f"{says} {quality.note}" if quality.note else says
