"""Decides which line of the workload each request gets: no server is sent a line twice. Pure.

A server keeps the beginnings of prompts (vLLM's automatic prefix caching), so a line that is sent again is half
answered already, and its time to first token is not that of a fresh prompt. Lines are therefore handed out once: first
those for warming servers and for greedy answers, which are not measured; then, block by block and level by level, as
many as a run takes, with its warm-up in front. All variants get the same lines. Lines may repeat where nothing is left
of an earlier request (`LevelOptions.may_repeat`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backend.domain.load.load import Load
from backend.domain.load.options import LoadOptions

GREEDY_PROMPTS, GREEDY_STREAMS = 32, 4
"""At most 32 greedy answers are compared, 4 at a time; batching noise is measured by asking the baseline twice. A
workload of fewer lines gives one answer for each, since a second answer to the same line would show nothing new."""
OPEN_STREAMS = (1, 8)
"""Concurrency that an open loop or a search is likely to reach; servers are warmed at it."""
SEARCHED_RUNS = 24
"""A generated workload has lines for this many runs of the first load: how many a search takes is not known."""
SHORTEST_S = 10.0
"""Shortest run of a rate in seconds: the queue of a slightly overloaded server needs time to show."""
ANSWERS_A_SECOND = 2.0
"""Most answers per second of one stream that are expected where only seconds are given. A workload with fewer lines
ends the run early, which is reported."""


class LineAllocation(NamedTuple):
    """`apart` lines that are not measured come first, then `runs` lines for each level, in every block."""

    apart: int
    runs: tuple[int, ...]

    def first(self, block: int, level: int) -> int:
        """Return the first line of that level in that block, both from 0; it counts on beyond the workload's end where
        lines may repeat."""
        return self.apart + block * sum(self.runs) + sum(self.runs[:level])

    def needed(self, blocks: int) -> int:
        """Return the lines that a workload must have so that none is used twice."""
        return self.apart + blocks * sum(self.runs)


def default_requests(load: Load) -> int:
    """Return the measured requests of a run where no number is given: three for each stream and at least six, or ten
    seconds of a rate and at least eight."""
    return max(6, 3 * int(load.value)) if load.is_closed else max(8, math.ceil(SHORTEST_S * load.value))


def is_cut(load: Load, options: LoadOptions, turns: int = 1) -> bool:
    """Tell whether a run of this load is cut into slices of one request (`order.cut_slices`); `turns` of the shortest
    conversation."""
    return load.is_closed and load.value == 1 and turns == 1 and options.seconds is None and not options.sweep


def warm_up_streams(options: LoadOptions) -> tuple[int, ...]:
    """Return the concurrency levels at which a server is warmed before anything is measured."""
    return options.concurrency if options.loads[0].is_closed and not options.sweep else OPEN_STREAMS


def warm_up_lines(load: Load, options: LoadOptions) -> int:
    """Return the most lines of one run that are sent before its measured ones."""
    if load.is_closed:
        return int(load.value) * options.warmup_requests
    if load.mode == "rate" and options.warmup_seconds:
        return _arrivals_within(load.value * options.warmup_seconds, options)
    return 0


def allocate_lines(options: LoadOptions, *, greedy: bool, turns: int = 1, lines: int | None = None) -> LineAllocation:
    """Allocate lines to runs. `greedy`: answers are compared too; `turns` of the shortest conversation.

    Where a run's length is given in seconds alone, nobody knows beforehand how many lines it takes: then its runs share
    the `lines` of the workload, if their number is known.
    """
    # 1. Lines that are not measured.
    apart = max(warm_up_streams(options))
    if greedy:
        apart = max(apart, GREEDY_PROMPTS + GREEDY_STREAMS)
    # 2. Lines of a run at each level.
    runs = [lines_of_run(load, options, turns, lines=lines) for load in options.loads]
    if lines is not None and is_open_ended(options):
        if options.may_repeat:
            runs = [max(run, lines) for run in runs]
        else:
            runs = _share_lines(runs, (lines - apart) // options.most_blocks)
    return LineAllocation(apart, tuple(runs))


def _share_lines(runs: list[int], lines: int) -> list[int]:
    """Share the lines equally if each run gets what it needs at least; else share only what is left over equally."""
    equal = lines // len(runs)
    if equal >= max(runs):
        return [equal] * len(runs)
    return [run + max(0, lines - sum(runs)) // len(runs) for run in runs]


def is_open_ended(options: LoadOptions) -> bool:
    """Tell whether only a number of seconds ends a run of a closed loop."""
    return options.loads[0].is_closed and options.requests is None and options.seconds is not None and not options.sweep


def lines_to_generate(options: LoadOptions, *, greedy: bool, turns: int = 1) -> int:
    """Return the lines that a generated workload is to have."""
    allocation = allocate_lines(options, greedy=greedy, turns=turns)
    if options.sweep:
        return allocation.apart + SEARCHED_RUNS * max(allocation.runs)
    if is_open_ended(options):
        answers_per_stream = (options.seconds or 0) * ANSWERS_A_SECOND + options.warmup_requests
        likely = [math.ceil(load.value * answers_per_stream) for load in options.loads]
        allocation = LineAllocation(allocation.apart, tuple(map(max, allocation.runs, likely)))
    return allocation.needed(1 if options.may_repeat else options.most_blocks)


def find_shortage(options: LoadOptions, lines: int, *, greedy: bool, turns: int = 1) -> int | None:
    """Return the lines that the load takes where the workload has fewer; None where it has enough.

    One run never sends a line twice, unless servers keep no prefixes at all. A trace is sent whole in every block.
    """
    if options.prefix_cache == "off":
        return None
    # The lines that all runs take, or one run where lines may come again.
    allocation = allocate_lines(options, greedy=greedy, turns=turns, lines=lines)
    if options.trace:
        needed = lines * (1 if options.may_repeat else options.most_blocks)
    elif options.may_repeat:
        needed = max(allocation.runs)
    elif options.sweep:
        needed = max(allocation.runs) + allocation.apart
    else:
        needed = allocation.needed(options.most_blocks)
    return needed if needed > lines else None


def continuation_origin(options: LoadOptions, lines: int, measured: int, *, greedy: bool, turns: int = 1) -> int | None:
    """Return the block from which lines are counted for the blocks after the `measured` ones, `options.repeats` in all.

    0 where the workload has lines for all of them; `measured` where lines start again, which requires servers that are
    started anew; None where it is too short even for the new blocks alone.
    """
    if options.may_repeat:
        return 0
    if not is_open_ended(options) and find_shortage(options, lines, greedy=greedy, turns=turns) is None:
        return 0
    new_blocks = options.model_copy(update={"repeats": options.repeats - measured})
    return measured if find_shortage(new_blocks, lines, greedy=greedy, turns=turns) is None else None


def lines_of_run(
    load: Load, options: LoadOptions, turns: int = 1, *, requests: int | None = None, lines: int | None = None
) -> int:
    """Return the lines that one run takes; `requests` replaces the options' number.

    Each turn of a conversation is a request, so a run takes fewer lines; each stream may leave one unfinished.
    """
    # 1. A trace and a ramp, which have no number of requests.
    if load.mode == "trace":
        return lines or 0
    if load.mode == "ramp":
        start = options.ramp[0] if options.ramp else 0.0
        return _arrivals_within((start + load.value) / 2 * (options.seconds or 0), options)
    # 2. A closed loop.
    warm_up, requested = warm_up_lines(load, options), requests or options.requests
    if load.is_closed:
        unfinished = int(load.value) if turns > 1 else 0
        return warm_up + math.ceil((requested or default_requests(load)) / turns) + unfinished
    # 3. A rate, over a time or a number of requests.
    if requested is None and options.seconds is not None:
        return warm_up + _arrivals_within(load.value * options.seconds, options)
    return warm_up + (requested or default_requests(load))


def _arrivals_within(expected: float, options: LoadOptions) -> int:
    """Return the most arrivals in a time that expects so many: for a Poisson process six standard deviations more."""
    margin = 6 * math.sqrt(expected) if options.process == "poisson" else 0
    return math.ceil(expected + margin) + 1
