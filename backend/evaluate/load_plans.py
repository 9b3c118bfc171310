"""Turns the options of an evaluation into the plans of its levels: closed loop, rate, ramp, trace.

Knows nothing of variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import EvaluateOptions, Level
from backend.domain.evaluation.outcome import SloCheck
from backend.domain.limits import objective
from backend.domain.load import prompt_lines, sweep
from backend.domain.load.load import Load
from backend.domain.load.options import RequestOptions
from backend.domain.load.records import Audit, LoadPlan, RequestRecord

MOST_STREAMS, MOST_DOUBLINGS = 256, 8
MOST_RUNS = 3
"""Most runs of an undecided level of a search."""

Records = list[RequestRecord]


class SearchedLevel(NamedTuple):
    """One level of a search with all its runs."""

    load: Load
    runs: list[tuple[Records, Audit]]
    check: objective.ObjectiveCheck


def make_plan(
    load: Load,
    options: EvaluateOptions,
    *,
    url: str,
    model: str,
    prompts: str,
    bearer: str | None = None,
    requests: int | None = None,
) -> LoadPlan:
    """Return the plan of one level; `requests` overrides the options'."""
    # 1. The number of requests, unless time or a trace ends the level.
    count = requests or options.requests
    if count is None and options.seconds is None and load.mode != "trace":
        count = prompt_lines.default_requests(load)

    # 2. All other fields come from the options.
    fields = options.model_dump(include=set(RequestOptions.model_fields))
    fields["warmup_seconds"] = options.warmup_seconds if load.mode == "rate" else 0.0
    return LoadPlan(
        **fields,
        url=url,
        model=model,
        prompts=prompts,
        bearer_env=bearer,
        load=load,
        process=options.process,
        seed=options.seed,
        ramp_from=options.ramp[0] if options.ramp else 0.0,
        requests=None if load.mode == "ramp" else count,
        seconds=None if load.mode == "trace" else options.seconds,
    )


def search_highest_load(
    options: EvaluateOptions,
    measure: Callable[[Load, int, int], tuple[Records, Audit]],
    report: Callable[[SearchedLevel], None],
) -> None:
    """Search the highest level within the objectives; `report` receives each level as soon as it is measured.

    `measure(load, requests, attempt)` runs one level once. An undecided level is measured up to LOOKS times and judged
    over all its requests; if it is then still undecided, it counts as outside. Ends early if the client limited a
    level.
    """
    # 1. Where the search begins and ends.
    objectives = [objective.parse_objective(text) for text in options.sweep]
    lowest = min(options.loads)
    first = float(lowest.value)
    most = options.sweep_to or (max(first, MOST_STREAMS) if lowest.is_closed else first * 2**MOST_DOUBLINGS)
    within: dict[float, bool] = {}

    # 2. Measure level after level, each until it is decided.
    while (level := sweep.next_level(within, first, most, whole=lowest.is_closed)) is not None:
        load = Load(lowest.mode, level)
        runs: list[tuple[Records, Audit]] = []
        needed = 2 * max(criterion.requests_needed() for criterion in objectives)
        verdict = objective.ObjectiveCheck("undecided", (), ())
        while verdict.verdict == "undecided" and len(runs) < MOST_RUNS:
            runs.append(measure(load, options.requests or max(needed, prompt_lines.default_requests(load)), len(runs)))
            verdict = objective.check_objectives(objectives, [record for records, _ in runs for record in records])
        report(SearchedLevel(load, runs, verdict))
        within[level] = verdict.verdict == "kept"
        if any(audit.client_limited for _, audit in runs):
            return


def mark_levels(levels: Sequence[Level], searched: Sequence[SearchedLevel], options: EvaluateOptions) -> list[Level]:
    """Return the levels of a search in order of load, each with its check, and mark the highest and the knee.

    A level that the client limited says nothing about the server, so it is neither.
    """
    # 1. Find the highest level within the objectives, and the knee.
    pairs = sorted(zip(searched, levels, strict=True), key=lambda pair: pair[0].load.value)
    outside = [level.load.value for level in searched if level.check.verdict != "kept"]
    first_outside = min(outside, default=math.inf)
    valid = [(level, summary) for level, summary in pairs if not summary.client_limited]
    within = [level.load.value for level, _ in valid if level.check.verdict == "kept"]
    highest = max((load for load in within if load < first_outside), default=None)
    rates = [(level.load.value, summary.output_tokens_per_s) for level, summary in valid]
    knee = sweep.knee([(load, rate) for load, rate in rates if rate is not None])

    # 2. Put each level's check beside its figures.
    marked = []
    for level, summary in pairs:
        check = SloCheck(
            objectives=options.sweep,
            verdict=level.check.verdict,
            shares=level.check.shares,
            intervals=level.check.intervals,
            highest=level.load.value == highest,
            knee=level.load.value == knee,
        )
        marked.append(summary.model_copy(update={"slo": check}))
    return marked
