"""Whether the load options of an evaluation go together. Pure; one sentence for the first thing that does not."""

from __future__ import annotations

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.limits import objective

MOST_STREAMS = 4096


def contradiction(options: EvaluateOptions) -> str | None:
    """What is wrong with them together, in one sentence for the command line; None where nothing is."""
    for find in (_several_modes, _levels, _ramp, _sweep, _not_streamed):
        if found := find(options):
            return found
    return None


def _several_modes(options: EvaluateOptions) -> str | None:
    given = [name for name, value in (("--rate", options.rate), ("--ramp", options.ramp), ("--trace", options.trace)) if value]
    if len(given) > 1:
        return f"{' and '.join(given)} cannot be combined: each says when requests are sent."
    if options.process == "poisson" and not (options.rate or options.ramp):
        return "--poisson needs --rate or --ramp: it spreads requests that are sent by the clock."
    return None


def _levels(options: EvaluateOptions) -> str | None:
    if any(level < 1 for level in options.concurrency) or not options.concurrency:
        return "--concurrency is wrong: every level is a whole number of at least 1, such as 1,4,16."
    if len(set(options.concurrency)) != len(options.concurrency):
        return "--concurrency is wrong: a level stands there twice."
    if max(options.concurrency) > MOST_STREAMS:
        return f"--concurrency is wrong: one load generator serves at most {MOST_STREAMS} streams."
    return "--rate is wrong: a rate stands there twice." if len(set(options.rate)) != len(options.rate) else None


def _ramp(options: EvaluateOptions) -> str | None:
    if options.ramp is not None and options.seconds is None:
        return "--ramp needs --seconds: the time over which the rate goes from the one to the other."
    if options.ramp is not None and options.requests is not None:
        return "--ramp ends with its --seconds: leave out --requests."
    return "--trace has its own times: leave out --seconds." if options.trace and options.seconds is not None else None


def _sweep(options: EvaluateOptions) -> str | None:
    if not options.sweep:
        return "--sweep-to needs --sweep, such as --sweep 'ttft_p95<=300ms'." if options.sweep_to is not None else None
    if options.ramp is not None or options.trace:
        return "--sweep searches over concurrency or --rate: leave out --ramp and --trace."
    first = min(options.rate) if options.rate else min(options.concurrency)
    if options.sweep_to is not None and options.sweep_to < first:
        return f"--sweep-to is wrong: {options.sweep_to:g} is below the first level, {first:g}."
    if options.sweep_to is not None and not options.rate and options.sweep_to > MOST_STREAMS:
        return f"--sweep-to is wrong: one load generator serves at most {MOST_STREAMS} streams."
    try:
        for text in options.sweep:
            objective.parse(text)
    except RequestError as error:
        return f"--sweep is wrong: {error}"
    return None


def _not_streamed(options: EvaluateOptions) -> str | None:
    timed = [text for text in options.sweep if objective.parse(text).metric != "client_latency_ms"]
    if timed and not options.stream:
        return f"--no-stream gives no time to first or per token: leave it out, or sweep by latency instead of {timed[0]}."
    return None
