"""What a server tells at `/metrics` in Prometheus' text exposition, as vLLM does, under our names. Pure."""

from __future__ import annotations

import math
import re

LONGEST_LINE = 20_000
"""Characters; a longer line is no sample of a counter, and would take long to match."""
COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prefix_cache_queries_total": "prefix_cache_query_tokens",
    "vllm:prefix_cache_hits_total": "prefix_cache_hit_tokens",
    "vllm:num_preemptions_total": "preemptions",
}
"""vLLM's counters and the names they have here."""
CACHE_BLOCK = "cache_block_tokens"
"""No counter: tokens of a block of the server's key-value cache, which prefixes are kept in."""
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
ACCEPTED_AT = "accepted_at_"
"""And the number of the proposed token, from 0: how many of those were accepted."""
_SAMPLE = re.compile(r"^(\S+?)(?:\{([^}]*)\})? (\S+)$")
_POSITION = re.compile(r'\bposition="(\d+)"')
_BLOCK = re.compile(r'^vllm:cache_config_info\{.*\bblock_size="(\d+)"', re.MULTILINE)


def parse_counters(text: str) -> dict[str, float]:
    """Of the server's whole time, each summed over labels (engines of a data-parallel server), and BLOCK where it is
    told.

    Raises ValueError for a sample that is no number.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line) if len(line) <= LONGEST_LINE else None
        name = match and _name(match[1], match[2] or "")
        if match and name:
            value = float(match[3])
            if not math.isfinite(value):
                raise ValueError(f"{match[1]} is {match[3]}")
            found[name] = found.get(name, 0.0) + value
    block = _BLOCK.search(text)
    return found | ({CACHE_BLOCK: float(block.group(1))} if block else {})


def _name(sample: str, labels: str) -> str | None:
    """What it is called here; None of a sample that nobody asks for."""
    position = _POSITION.search(labels) if sample == BY_POSITION else None
    return f"{ACCEPTED_AT}{position[1]}" if position else COUNTERS.get(sample)


def counter_increase(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """Of the time between two readings: what both have.

    Counters only rise: where one fell the server was started anew in between, and what it counted before is lost. Then
    there is nothing.
    """
    both = [name for name in before if name in after and name != CACHE_BLOCK]
    return (
        {}
        if any(after[name] < before[name] for name in both)
        else {name: int(after[name] - before[name]) for name in both}
    )
