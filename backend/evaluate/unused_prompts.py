"""Chooses prompts that a server was not asked before, and counts how much of them its prefix cache had anyway."""

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
"""Block size for a server without a prefix cache: longer than any prompt."""
UNKNOWN_TEMPLATE = 128
"""Most tokens of a chat template, assumed if a server does not report them."""


class WorkloadExhausted(WorkError):
    """The workload has no line left that the server was not asked before; a longer one is needed."""


class UnusedPrompts:
    """Tracks what each server of one evaluation or bench was asked."""

    def __init__(self, options: EvaluateOptions, workload: Workload, origin: int = 0) -> None:
        """`origin`: the block that lines are counted from (`prompt_lines.origin`)."""
        self._options, self._workload, self._turns, self._origin = options, workload, workload.least_turns, origin
        sharing = options.model_copy(update={"repeats": options.repeats - origin})
        self._lines = prompt_lines.allocate_lines(
            sharing, greedy=options.quality, turns=self._turns, lines=len(workload.prompts)
        )
        self._lines_used: dict[int, int] = {}
        """In a search: lines used so far by each server."""
        self._servers: dict[int, SentPrefixes] = {}
        self._salts = count()

    def first_line(self, block: int, level: int) -> int:
        """Return the line at which the run begins, the same for every server."""
        return 0 if self._options.trace else self._lines.first(block - self._origin, level)

    def most_requests(self, level: int) -> int | None:
        """Return how many measured requests a run has lines for, if only time would end it; else None."""
        load = self._options.loads[level]
        if not prompt_lines.is_open_ended(self._options) or self._options.prefix_cache == "off":
            return None
        return max(1, (self._lines.runs[level] - prompt_lines.warm_up_lines(load, self._options)) * self._turns)

    def take_lines(self, server: int, load: Load, requests: int) -> int:
        """Reserve the lines of the next run of a search and return the first. Raises WorkloadExhausted."""
        begin = self._lines_used.get(server, self._lines.apart)
        end = begin + prompt_lines.lines_of_run(load, self._options, self._turns, requests=requests)
        if end > len(self._workload.prompts) and not self._options.may_repeat:
            raise WorkloadExhausted(
                f"The search ended before {load.words}: the workload has {len(self._workload.prompts):,} lines, and "
                f"{end:,} are needed if no line is to be sent twice; give a longer one."
            )
        self._lines_used[server] = end
        return begin

    def plan_with_salt(self, server: int, plan: LoadPlan) -> LoadPlan:
        """Return the plan with a salt of its own if the prefix cache is to work only within each run."""
        if self._options.prefix_cache != "per-run":
            return plan
        if server in self._servers:
            self._servers[server].clear()
        return plan.model_copy(update={"cache_salt": f"whetstone-{next(self._salts)}"})

    def record_sent(
        self, server: int, plan: LoadPlan, records: Sequence[RequestRecord], counted: dict[str, int], block: int = 1
    ) -> PrefixHits:
        """Record what the server was asked; return the cache hits of the measured requests.

        `block` is the number of tokens in a block of the server's cache.
        """
        if server not in self._servers:
            size = NO_BLOCK if self._options.prefix_cache == "off" else block
            self._servers[server] = SentPrefixes(self._workload.prompts, block=size, template=template_tokens(plan))
        queried = counted.get("prefix_cache_query_tokens")
        reported = None if queried is None else (counted.get("prefix_cache_hit_tokens", 0), queried)
        return self._servers[server].record_run(records, reported)


def cache_block_tokens(counted: dict[str, float]) -> int:
    """Return the tokens in a block of the cache, from the server's counters; 1, for the most hits, if it is unknown."""
    return int(counted.get(counters.CACHE_BLOCK, 1))


def template_tokens(plan: LoadPlan) -> int:
    """Return the most tokens that the chat template adds to a message: those of a prompt of one character."""
    if plan.endpoint != "chat":
        return 0
    body = {"model": plan.model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
    try:
        answer = completion(plan.url, body, plan.bearer_env, "chat", limit_s=plan.timeout_s)
    except EndpointUnreachable:
        return UNKNOWN_TEMPLATE
    usage = parse_usage(answer.get("usage"))
    return UNKNOWN_TEMPLATE if usage is None or usage.prompt_tokens is None else usage.prompt_tokens
