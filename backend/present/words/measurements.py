"""Measured figures in words: the requested load, throughput, loss of quality, time to ready, and the memory limit."""

from __future__ import annotations

from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.memory_limit import BANDWIDTH, times_the_limit
from backend.domain.evaluation.startup import KINDS, PHASES, Startup
from backend.domain.figures import counted, figure, share, small
from backend.domain.load.prompt_lines import default_requests

INTERLEAVE = {
    "resident": "resident: all servers up, one loaded at a time, in ABBA order",
    "restart": "restart: one server up at a time, in ABBA order",
}


def throughput(level: Level) -> str:
    """`48.2 tokens/s`; `1.90 requests/s, tokens not counted` if answers have no token counts."""
    if level.output_tokens_per_s is not None:
        return f"{figure(level.output_tokens_per_s)} tokens/s"
    requests = [] if level.requests_per_s is None else [f"{figure(level.requests_per_s)} requests/s"]
    return ", ".join([*requests, "tokens not counted"])


def measured_slices(level: Level) -> str:
    """`5`; `5, in 30 slices` where the requests of the variants alternated."""
    slices = len(level.blocks)
    return str(level.repeats) if slices == level.repeats else f"{level.repeats}, in {slices} slices"


def load_asked(options: EvaluateOptions) -> tuple[str, str]:
    """Return the requested load as a title and words: (`Concurrency`, `1, 4`) or (`Requests/s`, `2, 8, at random
    times`)."""
    moments = ", at random times" if options.process == "poisson" else ""
    if options.trace:
        title, words = "Trace", "each request at its recorded time"
    elif options.ramp is not None:
        title = "Requests/s"
        words = f"{options.ramp[0]:g} to {options.ramp[1]:g} over {options.seconds:g} s{moments}"
    elif options.rate:
        title, words = "Requests/s", ", ".join(f"{rate:g}" for rate in options.rate) + moments
    else:
        title, words = "Concurrency", ", ".join(map(str, options.concurrency))
    searched = f", from there the highest that meets {' and '.join(options.sweep)}" if options.sweep else ""
    return title, words + searched


PREFIX_CACHE = {
    "recipe": "as each recipe says (vLLM's default: on); no workload line is sent to a server twice",
    "on": "on; no workload line is sent to a server twice",
    "off": "off",
    "per-run": "on, with separate prefixes for each run (cache_salt)",
}


def requests_asked(options: EvaluateOptions) -> str:
    """Return how many requests a run has: `16`, `as many as fit in 30 s`, `8 at 1 stream, 16 at 4 streams (four per
    stream, at least 8)`."""
    if options.trace:
        return "every line of the trace"
    if options.requests or options.sweep:
        return str(options.requests or "as many as the objectives need")
    if options.seconds:
        return f"as many as fit in {options.seconds:g} s"
    rule = "three per stream, at least 6" if options.loads[0].is_closed else "ten seconds at this rate, at least 8"
    return f"{', '.join(f'{default_requests(load)} at {load.words}' for load in options.loads)} ({rule})"


def answer_length(options: EvaluateOptions) -> str:
    """Return the requested length of answers and whether it is fixed; a workload line's own length overrides it."""
    length = f"{options.max_tokens} tokens, or as the workload line says"
    if options.ignore_eos:
        return f"exactly {length}; the model's end token is ignored"
    return f"at most {length}; the model may end earlier"


def cache_hits(level: Level) -> str:
    """`41% (the workload repeats 43% at most)`; `not reported` if the server does not report it."""
    if level.prefix_cache_hit_rate is None:
        return "not reported"
    expected = level.prefix_cache_expected
    return f"{level.prefix_cache_hit_rate:.0%}" + (
        "" if expected is None else f" (the workload repeats {expected:.0%} at most)"
    )


def quality_cost(quality: Quality | None) -> str:
    """Return the loss of quality, or `quality not measured`: speed is never shown without one of them.

    `KL 0.0004, perplexity 61.9 against 61.8, greedy match 98.2%, exact match 91.7%, token F1 97.0% over 12 answers`;
    with the intervals of the answers if nothing else was measured.
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
    if quality.served_kl is not None:
        parts.append(f"as served at least {small(quality.served_kl)}")
    return ", ".join(parts)


def answers_agreement(quality: Quality, *, intervals: bool = True) -> str:
    """Return how far greedy answers agree with the baseline's.

    `exact match 91.7% (95% 64.6 to 98.5), ... over 12 answers`.
    """
    if quality.answers == 0:
        return f"none of {quality.answers_asked} answers could be compared"
    count = "" if quality.answers is None else f" over {_compared(quality.answers, quality.answers_asked)}"
    parts = [f"{name} {share(*each, intervals=intervals)}" for name, each in agreed_shares(quality).items()]
    if quality.greedy_self is not None and parts:
        parts[0] += f" (the original against itself {share(quality.greedy_self, None)})"
    return ", ".join(parts) + count


def agreed_shares(quality: Quality) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Return (share, 95% interval) by name, for the measured ones."""
    known = {  # the greedy match first: `answers_agreement`
        "greedy match": (quality.greedy_match, quality.greedy_ci95),
        "exact match": (quality.exact_match, quality.exact_ci95),
        "token F1": (quality.token_f1, quality.token_f1_ci95),
    }
    return {name: (value, interval) for name, (value, interval) in known.items() if value is not None}


def _compared(compared: int, requested: int | None) -> str:
    """`12 answers`, or `10 of 12 answers` where requests failed."""
    return counted(compared, "answer") if requested in {None, compared} else f"{compared} of {requested} answers"


def scored(result: VariantResult) -> str:
    """Return which weights perplexity and KL were computed on."""
    quality = result.quality
    if quality is None:
        return "Not scored."
    source = {
        "dequantized": "The saved artifact's weights, dequantized, in the reference model; not the served kernels.",
        "original": "The original weights, which this variant serves unchanged.",
        "unavailable": "Not scored: the weights were not available.",
    }[quality.scored]
    return f"{source} {quality.note}" if quality.note else source


def readiness(result: VariantResult) -> str:
    """`31 s, compile cache loaded (weights 0.6 s, ...); 92 s, compiled at start (...)`: the fastest start of each
    kind."""
    fastest = {start.kind: start for start in result.timed_starts}
    if not fastest:
        if result.ready_seconds is not None:
            return f"{figure(result.ready_seconds)} s"
        return f"not measured{': it started together with another server' if result.starts else ''}"
    return "; ".join(_start(start) for start in sorted(fastest.values(), key=lambda start: start.ready_s))


def memory_limit(evaluation: Evaluation, result: VariantResult) -> str:
    """Return how far a variant is from the limit of its memory.

    `5.3 times at 1 stream the time of reading 269 MB of weights per step at 44.1 GB/s`.
    """
    bandwidth = evaluation.hardware.get(BANDWIDTH)
    times = [(level, times_the_limit(result.step, level, bandwidth)) for level in result.levels]
    ratios = [f"{figure(ratio)} times at {level.load.words}" for level, ratio in times if ratio is not None]
    if result.step is None or not bandwidth or not ratios:
        return "not known"
    reading = f"{figure(result.step.weights / 1e6)} MB of weights per step at {figure(bandwidth / 1e9)} GB/s"
    return f"{', '.join(ratios)} the time of reading {reading}"


def _start(start: Startup) -> str:
    spent = {name: getattr(start, field) for field, name in PHASES.items()}
    parts = ", ".join(f"{name.lower()} {figure(value)} s" for name, value in spent.items() if value is not None)
    return f"{figure(start.ready_s)} s, {KINDS[start.kind]} ({parts})"
