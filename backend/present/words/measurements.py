"""What was measured, in words: the load that was asked for, throughput, and what a variant costs in quality."""

from __future__ import annotations

from statistics import geometric_mean

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
    """`48.2 tokens/s`, the `typical` figure; where answers did not tell their tokens `1.90 requests/s, tokens not
    counted`."""
    if level.output_tokens_per_s is not None:
        return f"{figure(typical(level))} tokens/s"
    requests = [] if level.requests_per_s is None else [f"{figure(level.requests_per_s)} requests/s"]
    return ", ".join([*requests, "tokens not counted"])


def typical(level: Level) -> float | None:
    """Output tokens/s, as the geometric mean over repeats: what ratios between variants are of, so that two of these
    give the ratio beside them. Of the whole level where a repeat has none."""
    rates = [block["output_tokens_per_s"] for block in level.blocks if block.get("output_tokens_per_s", 0) > 0]
    whole = level.output_tokens_per_s
    return geometric_mean(rates) if whole and rates and len(rates) == len(level.blocks) else whole


def load_asked(options: EvaluateOptions) -> tuple[str, str]:
    """What load was asked for, as a title and words: (`Concurrency`, `1, 4`) or (`Requests/s`, `2, 8, at random
    moments`)."""
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


PREFIX_CACHE = {
    "recipe": "as each recipe says (vLLM's own: on); no line of the workload is asked of a server twice",
    "on": "on; no line of the workload is asked of a server twice",
    "off": "off",
    "per-run": "on, and each run keeps its own prefixes (cache_salt)",
}


def requests_asked(options: EvaluateOptions) -> str:
    """How many requests a run has: `16`, `as many as 30 s took`, `8 at 1 stream, 16 at 4 streams (four a stream, at
    least 8)`."""
    if options.trace:
        return "every line of the trace"
    if options.requests or options.sweep:
        return str(options.requests or "as many as the objectives take")
    if options.seconds:
        return f"as many as {options.seconds:g} s took"
    rule = "four a stream, at least 8" if options.loads[0].is_closed else "ten seconds of the rate, at least 8"
    return f"{', '.join(f'{default_requests(load)} at {load.words}' for load in options.loads)} ({rule})"


def answer_length(options: EvaluateOptions) -> str:
    """Whether answers have the length that was asked, and which; a line's own goes before the options'."""
    own = f"{options.max_tokens} tokens, or as the line says"
    return (
        f"{own}, whether or not the model would have ended there"
        if options.ignore_eos
        else f"at most {own}; the model may end it"
    )


def cache_hits(level: Level) -> str:
    """`41% (the workload repeats 43% at most)`; where the server does not tell, that."""
    if level.prefix_cache_hit_rate is None:
        return "not told"
    expected = level.prefix_cache_expected
    return f"{level.prefix_cache_hit_rate:.0%}" + (
        "" if expected is None else f" (the workload repeats {expected:.0%} at most)"
    )


def quality_cost(quality: Quality | None) -> str:
    """What a variant costs in quality, or `quality not measured`: speed is never shown without one of them.

    `KL 0.0004, perplexity 61.9 against 61.8, greedy match 98.2%, exact match 91.7%, token F1 97.0% over 12 answers`;
    with the intervals of the answers where they are all there is.
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
    """How far greedy answers agree with the baseline's: `exact match 91.7% (95% 64.6 to 98.5), ... over 12 answers`."""
    if quality.answers == 0:
        return f"none of {quality.answers_asked} answers could be compared"
    of = "" if quality.answers is None else f" over {_compared(quality.answers, quality.answers_asked)}"
    said = [f"{name} {share(*each, intervals=intervals)}" for name, each in agreed_shares(quality).items()]
    if quality.greedy_self is not None and said:
        said[0] += f" (the original with itself {share(quality.greedy_self, None)})"
    return ", ".join(said) + of


def agreed_shares(quality: Quality) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """(share, 95% interval) by name, those that were measured."""
    known = {  # the greedy match first: `answers_agreement`
        "greedy match": (quality.greedy_match, quality.greedy_ci95),
        "exact match": (quality.exact_match, quality.exact_ci95),
        "token F1": (quality.token_f1, quality.token_f1_ci95),
    }
    return {name: (value, interval) for name, (value, interval) in known.items() if value is not None}


def _compared(compared: int, asked: int | None) -> str:
    """`12 answers`, or `10 of 12 answers` where requests failed."""
    return counted(compared, "answer") if asked in {None, compared} else f"{compared} of {asked} answers"


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


def readiness(result: VariantResult) -> str:
    """`31 s, compile cache loaded (weights 0.6 s, ...); 92 s, compiled at start (...)`: the fastest start of each
    kind."""
    fastest = {start.kind: start for start in result.timed_starts}
    if not fastest:
        beside = ": it started beside another" if result.starts else ""
        return f"not measured{beside}" if result.ready_seconds is None else f"{figure(result.ready_seconds)} s"
    return "; ".join(_start(start) for start in sorted(fastest.values(), key=lambda start: start.ready_s))


def memory_limit(evaluation: Evaluation, result: VariantResult) -> str:
    """`5.3 times what reading 269 MB takes at 44.1 GB/s at 1 stream, ...`: how far it is from what its memory
    allows."""
    bandwidth = evaluation.hardware.get(BANDWIDTH)
    times = [(level, times_the_limit(result.step, level, bandwidth)) for level in result.levels]
    found = [f"{figure(ratio)} times at {level.load.words}" for level, ratio in times if ratio is not None]
    if result.step is None or not bandwidth or not found:
        return "not known"
    reading = f"{figure(result.step.weights / 1e6)} MB of weights a step at {figure(bandwidth / 1e9)} GB/s"
    return f"{', '.join(found)} the time of reading {reading}"


def _start(start: Startup) -> str:
    spent = {name: getattr(start, field) for field, name in PHASES.items()}
    parts = ", ".join(f"{name.lower()} {figure(value)} s" for name, value in spent.items() if value is not None)
    return f"{figure(start.ready_s)} s, {KINDS[start.kind]} ({parts})"
