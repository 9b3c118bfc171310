"""Checks that the load options of an evaluation do not contradict each other. Pure."""

from __future__ import annotations

from backend.domain.errors import InvalidOptions, RequestError
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.limits import objective

MOST_STREAMS = 4096
DEFAULT_MAX_BLOCKS = EvaluateOptions().max_blocks


def validate_options(options: EvaluateOptions) -> None:
    """Raise InvalidOptions with one sentence for the first contradiction."""
    for rule in (_several_modes, _levels, _too_few_requests, _ramp, _sweep, _until_decided, _not_streamed):
        rule(options)


def _several_modes(options: EvaluateOptions) -> None:
    first, *others = [name for name in ("rate", "ramp", "trace") if getattr(options, name)] or ("concurrency",)
    if others:
        all_others = "and {} " * len(others)
        raise InvalidOptions(f"{all_others}cannot be combined: each says when requests are sent.", *others, field=first)
    if options.process == "poisson" and first not in {"rate", "ramp"}:
        problem = "needs {} or {}: it spreads requests that are sent by the clock."
        raise InvalidOptions(problem, "rate", "ramp", field="process")


def _levels(options: EvaluateOptions) -> None:
    if any(level < 1 for level in options.concurrency) or not options.concurrency:
        raise InvalidOptions(
            "is wrong: every level is a whole number of at least 1, such as 1,4,16.", field="concurrency"
        )
    if len(set(options.concurrency)) != len(options.concurrency):
        raise InvalidOptions("is wrong: a level is given twice.", field="concurrency")
    if max(options.concurrency) > MOST_STREAMS:
        raise InvalidOptions(
            f"is wrong: one load generator serves at most {MOST_STREAMS} streams.", field="concurrency"
        )
    if len(set(options.rate)) != len(options.rate):
        raise InvalidOptions("is wrong: a rate is given twice.", field="rate")


def _too_few_requests(options: EvaluateOptions) -> None:
    """A level with idle streams is not valid, so it is refused before it is measured. A search begins at its lowest."""
    if options.requests is None or not options.loads[0].is_closed:
        return
    streams = min(options.concurrency) if options.sweep else max(options.concurrency)
    if options.requests < streams:
        raise InvalidOptions(
            f"is wrong: {options.requests} requests cannot keep {streams} streams busy. Give at least {streams}, or "
            "leave it out for three a stream.",
            field="requests",
        )


def _ramp(options: EvaluateOptions) -> None:
    if options.ramp is not None and options.seconds is None:
        problem = "needs {}: the time over which the rate changes."
        raise InvalidOptions(problem, "seconds", field="ramp")
    if options.ramp is not None and options.requests is not None:
        raise InvalidOptions("ends with its {}: leave out {}.", "seconds", "requests", field="ramp")
    if options.trace and options.seconds is not None:
        raise InvalidOptions("has its own times: leave out {}.", "seconds", field="trace")


def _until_decided(options: EvaluateOptions) -> None:
    if options.until_decided and options.sweep:
        problem = "compares variants at the same levels, but a search chooses levels for each variant: leave out {}."
        raise InvalidOptions(problem, "sweep", field="until_decided")
    if not options.until_decided and options.max_blocks != DEFAULT_MAX_BLOCKS:
        raise InvalidOptions("needs {}.", "until_decided", field="max_blocks")


def _sweep(options: EvaluateOptions) -> None:
    # 1. A search, and nothing that excludes one.
    if not options.sweep:
        if options.sweep_to is not None:
            raise InvalidOptions("needs {}, such as 'ttft_p95<=300ms'.", "sweep", field="sweep_to")
        return
    if options.ramp is not None or options.trace:
        problem = "searches over {} or {}: leave out {} and {}."
        raise InvalidOptions(problem, "concurrency", "rate", "ramp", "trace", field="sweep")
    # 2. Its last level is above the first, and within what a generator serves.
    first = min(options.rate) if options.rate else min(options.concurrency)
    if options.sweep_to is not None and options.sweep_to < first:
        raise InvalidOptions(f"is wrong: {options.sweep_to:g} is below the first level, {first:g}.", field="sweep_to")
    if options.sweep_to is not None and not options.rate and options.sweep_to > MOST_STREAMS:
        raise InvalidOptions(f"is wrong: one load generator serves at most {MOST_STREAMS} streams.", field="sweep_to")
    # 3. Its objectives.
    try:
        for text in options.sweep:
            objective.parse_objective(text)
    except RequestError as error:
        raise InvalidOptions(f"is wrong: {error}", field="sweep") from None


def _not_streamed(options: EvaluateOptions) -> None:
    timed = [text for text in options.sweep if objective.parse_objective(text).limit.metric != "client_latency_ms"]
    if timed and not options.stream:
        raise InvalidOptions(
            f"is wrong: {timed[0]} needs streamed answers: stream them, or search by latency.", field="sweep"
        )
