"""Parses the counters that a server reports at `/metrics` in Prometheus' text format, as vLLM and llama.cpp do.
Pure."""

from __future__ import annotations

import math
import re

LONGEST_LINE = 20_000
"""Characters; a longer line is not a counter, and would take long to match."""
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
LLAMA_CPP = {
    "llamacpp:prompt_tokens_total": ("prompt_tokens", "prefix_cache_query_tokens"),
    "llamacpp:prompt_tokens_cached_total": ("prompt_tokens", "prefix_cache_query_tokens", "prefix_cache_hit_tokens"),
    "llamacpp:tokens_predicted_total": ("generation_tokens",),
    "llamacpp:spec_decode_num_drafts_total": ("drafts",),
    "llamacpp:spec_decode_num_draft_tokens_total": ("drafted_tokens",),
    "llamacpp:spec_decode_num_accepted_tokens_total": ("accepted_tokens",),
}
"""llama.cpp's counters (tools/server/server-task.cpp): prompt tokens are counted apart if they came from its cache.
Those of drafts are 0 where it does not speculate, and are left out then."""
DRAFTING = ("drafts", "drafted_tokens", "accepted_tokens")
OPENVINO = {
    "openvino:prompt_tokens_total": ("prompt_tokens",),
    "openvino:generation_tokens_total": ("generation_tokens",),
}
"""Counters of Whetstone's server over OpenVINO GenAI (`serving/openvino_program/app.py`)."""
CACHE_BLOCK = "cache_block_tokens"
"""Not a counter: the tokens in one block of the server's key-value cache."""
BY_POSITION = {f"{engine}:spec_decode_num_accepted_tokens_per_pos_total" for engine in ("vllm", "llamacpp")}
ACCEPTED_AT = "accepted_at_"
"""Followed by the number of the proposed token, from 0: how many at that position were accepted."""
_SAMPLE = re.compile(r"^(\S+?)(?:\{([^}]*)\})? (\S+)$")
_POSITION = re.compile(r'\bposition="(\d+)"')
_BLOCK = re.compile(r'^vllm:cache_config_info\{.*\bblock_size="(\d+)"', re.MULTILINE)


def parse_counters(text: str) -> dict[str, float]:
    """Return counters since the server started, each summed over labels (engines of a data-parallel server), and
    CACHE_BLOCK where it is reported.

    Raises ValueError for a sample that is not a number.
    """
    # 1. Counters.
    counters: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line) if len(line) <= LONGEST_LINE else None
        names = _counter_names(match[1], match[2] or "") if match else ()
        if match and names:
            value = float(match[3])
            if not math.isfinite(value):
                raise ValueError(f"{match[1]} is {match[3]}")
            for name in names:
                counters[name] = counters.get(name, 0.0) + value
    # 2. llama.cpp reports drafts of a server that makes none.
    if "llamacpp:" in text and not counters.get("drafts"):
        for name in DRAFTING:
            counters.pop(name, None)
    # 3. The size of a block.
    block = _BLOCK.search(text)
    if block:
        counters[CACHE_BLOCK] = float(block.group(1))
    return counters


def _counter_names(sample: str, labels: str) -> tuple[str, ...]:
    """Return our names of a sample; none for one that is not used."""
    position = _POSITION.search(labels) if sample in BY_POSITION else None
    if position is not None:
        return (f"{ACCEPTED_AT}{position[1]}",)
    return (LLAMA_CPP | OPENVINO).get(sample) or ((COUNTERS[sample],) if sample in COUNTERS else ())


def counter_increase(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """Return how much each counter rose between two readings.

    Counters only rise: where one fell, the server was started anew in between and its earlier counts are lost. Then
    the result is empty.
    """
    shared = [name for name in before if name in after and name != CACHE_BLOCK]
    if any(after[name] < before[name] for name in shared):
        return {}
    return {name: int(after[name] - before[name]) for name in shared}
