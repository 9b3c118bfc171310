"""From the options of an evaluation to the plans of its levels: closed loop, rate, ramp, trace. Knows nothing of
variants."""

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
"""Times an undecided level of a sweep is measured in all."""

Records = list[RequestRecord]


class SearchedLevel(NamedTuple):
    """One level of a sweep with all its runs."""

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
    """The plan of one level; `requests` overrides the options'."""
    wanted = requests or options.requests
    if wanted is None and options.seconds is None:
        wanted = None if load.mode == "trace" else prompt_lines.default_requests(load)
    asked = options.model_dump(include=set(RequestOptions.model_fields))
    asked["warmup_seconds"] = options.warmup_seconds if load.mode == "rate" else 0.0
    return LoadPlan(
        **asked,
        url=url,
        model=model,
        prompts=prompts,
        bearer_env=bearer,
        load=load,
        process=options.process,
        seed=options.seed,
        ramp_from=options.ramp[0] if options.ramp else 0.0,
        requests=None if load.mode == "ramp" else wanted,
        seconds=None if load.mode == "trace" else options.seconds,
    )


def search_highest_load(
    options: EvaluateOptions,
    measure: Callable[[Load, int, int], tuple[Records, Audit]],
    report: Callable[[SearchedLevel], None],
) -> None:
    """Sweep for the highest level that keeps the objectives; `report` gets each level as soon as it is measured.

    `measure(load, requests, look)` runs one level once. An undecided level is measured up to LOOKS times and judged
    over all its requests; what then is still undecided counts as not kept. Ends early where the client held the level
    back.
    """
    objectives = [objective.parse_objective(text) for text in options.sweep]
    lowest = min(options.loads)
    first = float(lowest.value)
    most = options.sweep_to or (max(first, MOST_STREAMS) if lowest.is_closed else first * 2**MOST_DOUBLINGS)
    kept: dict[float, bool] = {}
    while (level := sweep.next_level(kept, first, most, whole=lowest.is_closed)) is not None:
        load = Load(lowest.mode, level)
        runs: list[tuple[Records, Audit]] = []
        needed = 2 * max(each.requests_needed() for each in objectives)
        verdict = objective.ObjectiveCheck("undecided", (), ())
        while verdict.verdict == "undecided" and len(runs) < MOST_RUNS:
            runs.append(measure(load, options.requests or max(needed, prompt_lines.default_requests(load)), len(runs)))
            verdict = objective.check_objectives(objectives, [record for records, _ in runs for record in records])
        report(SearchedLevel(load, runs, verdict))
        kept[level] = verdict.verdict == "kept"
        if any(audit.client_limited for _, audit in runs):
            return


def mark_levels(levels: Sequence[Level], found: Sequence[SearchedLevel], options: EvaluateOptions) -> list[Level]:
    """The levels of a sweep in order of load, each with its check, the highest kept and the knee marked.

    What the client held back is no figure of the server, so no such level is the highest or the knee.
    """
    pairs = sorted(zip(found, levels, strict=True), key=lambda pair: pair[0].load.value)
    lost = min((each.load.value for each in found if each.check.verdict != "kept"), default=math.inf)
    sound = [(each, level) for each, level in pairs if not level.client_limited]
    held = [each.load.value for each, _ in sound if each.check.verdict == "kept" and each.load.value < lost]
    rates = ((each.load.value, level.output_tokens_per_s) for each, level in sound)
    bend = sweep.knee([(load, rate) for load, rate in rates if rate is not None])
    marked = []
    for each, level in pairs:
        check = SloCheck(
            objectives=options.sweep,
            verdict=each.check.verdict,
            shares=each.check.shares,
            intervals=each.check.intervals,
            highest=bool(held) and each.load.value == max(held),
            knee=each.load.value == bend,
        )
        marked.append(level.model_copy(update={"slo": check}))
    return marked
