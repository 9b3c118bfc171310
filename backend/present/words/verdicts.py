"""Figures put into words: ratios with their direction, quality costs, provenance, and one verdict sentence a level and variant.

Knows nothing of how a figure was measured or tested; `comparison` decides, this module only says it.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.evaluation.document import Comparison, EvaluateOptions, Evaluation, Level, Quality, VariantResult
from backend.domain.figures import counted, figure, share, small, streams, times
from backend.domain.maths.student_t import SIGNIFICANCE

NO_DIFFERENCE = "no significant difference"
NOT_COMPARABLE = "not comparable"
INTERLEAVE = {
    "resident": "resident: all servers up, one loaded at a time, in ABBA order",
    "restart": "restart: one server up at a time, in ABBA order",
}


class Direction(NamedTuple):
    """A metric's plain name and which way is better."""

    title: str
    higher_is_better: bool


DIRECTIONS = {
    "ttft_ms": Direction("TTFT", False),
    "tpot_ms": Direction("inter-token latency", False),
    "client_latency_ms": Direction("client latency", False),
    "output_tokens_per_s": Direction("output tokens/s", True),
    "steady_output_tokens_per_s": Direction("steady output tokens/s", True),
}


def direction(metric: str) -> Direction:
    """`ttft_ms_p50` and `ttft_ms` share a title; the median is the figure meant unless the name says otherwise."""
    base = next((name for name in DIRECTIONS if metric == name or metric.startswith(f"{name}_")), None)
    return DIRECTIONS[base] if base else Direction(metric.replace("_", " "), False)


def throughput(level: Level) -> str:
    """`48.2 tokens/s`; where answers did not tell their tokens `1.90 requests/s, tokens not counted`."""
    if level.output_tokens_per_s is not None:
        return f"{figure(level.output_tokens_per_s)} tokens/s"
    requests = [] if level.requests_per_s is None else [f"{figure(level.requests_per_s)} requests/s"]
    return ", ".join([*requests, "tokens not counted"])


def better_factor(metric: str, ratio: float) -> float:
    """How many times better the variant is: above 1 better, below 1 worse."""
    return ratio if direction(metric).higher_is_better else 1 / ratio


def decided(metric: str, ratio: float, interval: tuple[float, float], significant: bool) -> str:
    """The verdict of a test: `faster by 1.80x (95% 1.70 to 1.90)`, `slower by ...`, `no significant difference (...)`."""
    if not significant:
        return f"{NO_DIFFERENCE} ({times(ratio, interval)})"
    faster = better_factor(metric, ratio) > 1
    # Said as a factor above 1 either way, so the interval turns over with it.
    if ratio < 1:
        ratio, interval = 1 / ratio, (1 / interval[1], 1 / interval[0])
    return f"{'faster' if faster else 'slower'} by {times(ratio, interval)}"


def is_decided(row: Comparison) -> bool:
    """A test was made; otherwise the verdict says why not."""
    return row.p_value is not None


def is_significant(row: Comparison) -> bool:
    return row.p_value is not None and row.p_value <= SIGNIFICANCE


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


def sentence(rows: list[Comparison], quality: Quality | None) -> str:
    """The verdict on one variant at one level: throughput, then the latencies, then what it costs in quality.

    `rows` are the comparisons of one variant at one concurrency, at least one.
    """
    ordered = sorted(rows, key=lambda row: not direction(row.metric).higher_is_better)
    tested = [_tested(row) for row in ordered if is_decided(row)]
    rest = [row for row in ordered if not is_decided(row)]
    # A reason that holds for several metrics is said once, with their ratios before it.
    reasons = dict.fromkeys(_reason(row) for row in rest)
    untested = [_untested([row for row in rest if _reason(row) == reason], reason) for reason in reasons]
    if untested and not tested:
        untested[0] = f"`{rows[0].variant}` against `{rows[0].baseline}`: {untested[0]}"
    return f"At {streams(rows[0].key)} {'; '.join([*tested, *untested, quality_cost(quality)])}."


def _tested(row: Comparison) -> str:
    title = direction(row.metric).title
    if not direction(row.metric).higher_is_better:
        return f"{title} {row.verdict if is_significant(row) else NO_DIFFERENCE}"
    shown = times(row.ratio or 1.0, row.ci95)
    if is_significant(row):
        factor, _, interval = shown.partition(" ")
        return f"`{row.variant}` gives {factor} the {title} of `{row.baseline}` {interval}"
    return f"`{row.variant}` shows {NO_DIFFERENCE} in {title} from `{row.baseline}`, {shown}"


def _untested(rows: list[Comparison], reason: str) -> str:
    """`output tokens/s 1.31x, TTFT 0.52x, too few repeats ...`; no ratios where they would compare nothing."""
    if NOT_COMPARABLE in reason:
        return reason
    named = [(direction(row.metric).title, row) for row in rows]
    shown = [title if row.ratio is None else f"{title} {times(row.ratio, row.ci95)}" for title, row in named]
    return f"{', '.join(shown)}, {reason}"


def undecided(ratio: float | None, interval: tuple[float, float] | None, reason: str) -> str:
    """The verdict where no test was made: the ratio, where it compares anything, and why there is no verdict."""
    return reason if ratio is None or NOT_COMPARABLE in reason else f"{times(ratio, interval)}, {reason}"


def _reason(row: Comparison) -> str:
    return row.verdict if row.ratio is None else row.verdict.removeprefix(f"{times(row.ratio, row.ci95)}, ")


class Verdict(NamedTuple):
    """One sentence, with the variant and level that it is about."""

    variant: str
    concurrency: int
    text: str


def by_level(evaluation: Evaluation) -> dict[tuple[str, int | str], list[Comparison]]:
    """The comparisons of each variant and level."""
    found: dict[tuple[str, int | str], list[Comparison]] = {}
    for row in evaluation.comparison:
        found.setdefault((row.variant, row.key), []).append(row)
    return found


def verdicts(evaluation: Evaluation) -> list[Verdict]:
    """One a variant and level that was compared with the baseline, in the order of variants, then levels."""
    found, compared = [], by_level(evaluation)
    for result in evaluation.variants[1:]:
        for level in result.levels:
            rows = compared.get((result.name, level.key))
            if rows:
                found.append(Verdict(result.name, level.concurrency, sentence(rows, result.quality)))
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
