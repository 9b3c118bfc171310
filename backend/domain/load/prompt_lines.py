"""Which line of the workload is asked when: no server is asked one twice. Pure.

A server keeps the beginnings of prompts (vLLM's automatic prefix caching), so that a line asked again is half answered
already and its time to first token is that of no fresh prompt. So lines are handed out once: first those that warm the
servers and give the greedy answers, which are not measured; then block by block and level by level as many as a run
takes, its warm-up's in front. They are the same for every variant. Where nothing is left of an earlier request
(`LevelOptions.may_repeat`) they may come round.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backend.domain.load.load import Load
from backend.domain.load.options import LoadOptions

GREEDY_PROMPTS, GREEDY_STREAMS = 32, 4
"""Whose greedy answers are compared, at the most; of a workload of fewer lines each is asked once, for a second time
would say nothing new. So many, since an interval takes them; a few at a time, for how far batches tip a tie is measured
with the baseline against itself."""
OPEN_STREAMS = (1, 8)
"""What an open loop or a search is likely to come to."""
SEARCHED_RUNS = 24
"""Runs of the first load's size that a generated workload is made long enough for: how many a search takes is not
known."""
SHORTEST_S = 10.0
"""Of a rate: the queue of a server that is asked for a little too much needs time to show."""
ANSWERS_A_SECOND = 2.0
"""Of one stream, at most, where only the seconds are known: a workload with fewer lines ends the run early, and that is
said."""


class LineAllocation(NamedTuple):
    """`apart` lines that are not measured, then `runs` lines of each level, in every block."""

    apart: int
    runs: tuple[int, ...]

    def first(self, block: int, level: int) -> int:
        """Of the level with that number in that block, both from 0; counted beyond the workload's end where lines may
        repeat."""
        return self.apart + block * sum(self.runs) + sum(self.runs[:level])

    def needed(self, blocks: int) -> int:
        """Lines that a workload must have so that none is asked twice."""
        return self.apart + blocks * sum(self.runs)


def default_requests(load: Load) -> int:
    """Measured requests where nobody says how many: four answers a stream, ten seconds of a rate, and at least
    eight."""
    return max(8, 4 * int(load.value)) if load.is_closed else max(8, math.ceil(SHORTEST_S * load.value))


def warm_up_streams(options: LoadOptions) -> tuple[int, ...]:
    """Levels at which a server is warmed before anything is measured."""
    return options.concurrency if options.loads[0].is_closed and not options.sweep else OPEN_STREAMS


def warm_up_lines(load: Load, options: LoadOptions) -> int:
    """Lines of one run that are sent before what is measured, at most."""
    if load.is_closed:
        return int(load.value) * options.warmup_requests
    return (
        _within(load.value * options.warmup_seconds, options) if load.mode == "rate" and options.warmup_seconds else 0
    )


def allocate_lines(options: LoadOptions, *, greedy: bool, turns: int = 1, lines: int | None = None) -> LineAllocation:
    """How lines are handed out. `greedy`: answers are compared too; `turns` of the shortest conversation.

    Where a run's length is given in seconds alone, and `lines` in the workload are known, its runs share what there is:
    nobody knows beforehand how many they take.
    """
    apart = max(max(warm_up_streams(options)), GREEDY_PROMPTS + GREEDY_STREAMS if greedy else 0)
    runs = [lines_of_run(load, options, turns, lines=lines) for load in options.loads]
    if lines is not None and is_open_ended(options):
        runs = (
            [max(run, lines) for run in runs]
            if options.may_repeat
            else _spread(runs, (lines - apart) // options.most_blocks)
        )
    return LineAllocation(apart, tuple(runs))


def _spread(runs: list[int], lines: int) -> list[int]:
    """These, alike where each gets what it needs at least; else what is left over is shared alike."""
    alike = lines // len(runs)
    return [alike] * len(runs) if alike >= max(runs) else [run + max(0, lines - sum(runs)) // len(runs) for run in runs]


def is_open_ended(options: LoadOptions) -> bool:
    """Whether only seconds end a run of a closed loop."""
    return options.loads[0].is_closed and options.requests is None and options.seconds is not None and not options.sweep


def lines_to_generate(options: LoadOptions, *, greedy: bool, turns: int = 1) -> int:
    """Lines that a generated workload is to have."""
    lines = allocate_lines(options, greedy=greedy, turns=turns)
    if options.sweep:
        return lines.apart + SEARCHED_RUNS * max(lines.runs)
    if is_open_ended(options):
        likely = [
            math.ceil(load.value * ((options.seconds or 0) * ANSWERS_A_SECOND + options.warmup_requests))
            for load in options.loads
        ]
        lines = LineAllocation(lines.apart, tuple(map(max, lines.runs, likely)))
    return lines.needed(1 if options.may_repeat else options.most_blocks)


def find_shortage(options: LoadOptions, lines: int, *, greedy: bool, turns: int = 1) -> int | None:
    """Lines that the load takes where the workload has fewer; None where it has enough, and where lines may come round.

    One run never asks a line twice, unless servers keep no prefixes at all. A trace is sent whole in every block.
    """
    if options.prefix_cache == "off":
        return None
    found = allocate_lines(options, greedy=greedy, turns=turns, lines=lines)
    if options.trace:
        needed = lines * (1 if options.may_repeat else options.most_blocks)
    elif options.may_repeat or options.sweep:
        needed = max(found.runs) + (0 if options.may_repeat else found.apart)
    else:
        needed = found.needed(options.most_blocks)
    return needed if needed > lines else None


def continuation_origin(options: LoadOptions, lines: int, measured: int, *, greedy: bool, turns: int = 1) -> int | None:
    """Block that lines are counted from for those that follow on `measured` ones of an evaluation, `options.repeats` in
    all.

    0 where the workload has lines for all of them; `measured` where they come round, which only servers may be asked
    that are started anew; None where it is too short even for the new ones alone.
    """
    if options.may_repeat or (
        not is_open_ended(options) and find_shortage(options, lines, greedy=greedy, turns=turns) is None
    ):
        return 0
    alone = options.model_copy(update={"repeats": options.repeats - measured})
    return measured if find_shortage(alone, lines, greedy=greedy, turns=turns) is None else None


def lines_of_run(
    load: Load, options: LoadOptions, turns: int = 1, *, requests: int | None = None, lines: int | None = None
) -> int:
    """Lines that one run takes; `requests` in place of the options'.

    Of a conversation each turn is a request, so that it takes fewer lines; each stream may leave one unfinished.
    """
    if load.mode == "trace":
        return lines or 0
    before, asked = warm_up_lines(load, options), requests or options.requests
    if load.mode == "ramp":
        start = options.ramp[0] if options.ramp else 0.0
        return _within((start + load.value) / 2 * (options.seconds or 0), options)
    if load.is_closed:
        return before + math.ceil((asked or default_requests(load)) / turns) + (int(load.value) if turns > 1 else 0)
    by_time = asked is None and options.seconds is not None
    return before + (
        _within(load.value * (options.seconds or 0), options) if by_time else asked or default_requests(load)
    )


def _within(expected: float, options: LoadOptions) -> int:
    """Arrivals in a stretch of time that expects so many: of a Poisson process six standard deviations more."""
    return math.ceil(expected + (6 * math.sqrt(expected) if options.process == "poisson" else 0)) + 1
