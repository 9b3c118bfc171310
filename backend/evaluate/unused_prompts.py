"""Lines that a server was not asked before, and how much of their prompts it had kept all the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from backend.domain.errors import EndpointUnreachable, WorkError
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.evaluation.prefix_cache import PrefixHits, SentPrefixes
from backend.domain.load import counters, prompt_lines
from backend.domain.load.load import Load
from backend.domain.load.openai_json import parse_usage
from backend.domain.load.records import LoadPlan, RequestRecord
from backend.domain.workload.workload import Workload
from backend.endpoint import completion

NO_BLOCK = 2**31
"""Of a server that is to keep nothing: no prefix is as long."""
UNKNOWN_TEMPLATE = 128
"""Tokens of a chat template at the most, where a server does not tell."""


class WorkloadExhausted(WorkError):
    """The workload has no line left that the server was not asked before: give a longer one."""


class UnusedPrompts:
    """Of one evaluation or bench: what each of its servers was asked."""

    def __init__(self, options: EvaluateOptions, workload: Workload, origin: int = 0) -> None:
        """`origin`: the block that lines are counted from (`prompt_lines.origin`)."""
        self._options, self._workload, self._turns, self._origin = options, workload, workload.least_turns, origin
        sharing = options.model_copy(update={"repeats": options.repeats - origin})
        self._lines = prompt_lines.allocate_lines(
            sharing, greedy=options.quality, turns=self._turns, lines=len(workload.prompts)
        )
        self._taken: dict[int, int] = {}
        """Of a search, server -> lines so far."""
        self._servers: dict[int, SentPrefixes] = {}
        self._salts = count()

    def first_line(self, block: int, level: int) -> int:
        """Line that the run begins at, the same for every server."""
        return 0 if self._options.trace else self._lines.first(block - self._origin, level)

    def most_requests(self, level: int) -> int | None:
        """Measured requests that a run has lines for, where nothing but seconds would end it; else None."""
        load = self._options.loads[level]
        if not prompt_lines.is_open_ended(self._options) or self._options.prefix_cache == "off":
            return None
        return max(1, (self._lines.runs[level] - prompt_lines.warm_up_lines(load, self._options)) * self._turns)

    def take_lines(self, server: int, load: Load, requests: int) -> int:
        """Line that the next run of a search begins at. Raises Spent."""
        begin = self._taken.get(server, self._lines.apart)
        end = begin + prompt_lines.lines_of_run(load, self._options, self._turns, requests=requests)
        if end > len(self._workload.prompts) and not self._options.may_repeat:
            raise WorkloadExhausted(
                f"The search ended before {load.words}: the workload has {len(self._workload.prompts):,} lines, and "
                f"{end:,} would have been needed so that none is asked twice; give a longer one."
            )
        self._taken[server] = end
        return begin

    def plan_with_salt(self, server: int, plan: LoadPlan) -> LoadPlan:
        """With a salt of its own where each run keeps its own prefixes."""
        if self._options.prefix_cache != "per-run":
            return plan
        if server in self._servers:
            self._servers[server].clear()
        return plan.model_copy(update={"cache_salt": f"whetstone-{next(self._salts)}"})

    def record_sent(
        self, server: int, plan: LoadPlan, records: Sequence[RequestRecord], counted: dict[str, int], block: int = 1
    ) -> PrefixHits:
        """Note what it was asked; the hits of the measured ones. `block`: tokens of a block of its cache."""
        if server not in self._servers:
            kept = NO_BLOCK if self._options.prefix_cache == "off" else block
            self._servers[server] = SentPrefixes(self._workload.prompts, block=kept, template=template_tokens(plan))
        asked = counted.get("prefix_cache_query_tokens")
        told = None if asked is None else (counted.get("prefix_cache_hit_tokens", 0), asked)
        return self._servers[server].record_run(records, told)


def cache_block_tokens(told: dict[str, float]) -> int:
    """Tokens of a block of the cache, from the server's counters; 1, which expects most hits, where it does not
    tell."""
    return int(told.get(counters.CACHE_BLOCK, 1))


def template_tokens(plan: LoadPlan) -> int:
    """Tokens that the server's chat template puts around a message, at most: those of a prompt of one character."""
    if plan.endpoint != "chat":
        return 0
    body = {"model": plan.model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
    try:
        answer = completion(plan.url, body, plan.bearer_env, "chat", limit_s=plan.timeout_s)
    except EndpointUnreachable:
        return UNKNOWN_TEMPLATE
    usage = parse_usage(answer.get("usage"))
    return UNKNOWN_TEMPLATE if usage is None or usage.prompt_tokens is None else usage.prompt_tokens
