"""Parses what vLLM writes about itself: its log since its last start, and its cache's settings at `/metrics`. Pure.

Lines of vLLM 0.32.0: the configuration (v1/engine/core.py), the arguments as parsed (entrypoints/utils), the kernels of
quantized layers (model_executor/kernels/linear), what loading and the cache took (weight_utils.py, kv_cache_utils.py),
counts of drafts (v1/spec_decode/metrics.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SETTINGS = (
    "model",
    "dtype",
    "max_seq_len",
    "load_format",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "quantization",
    "enforce_eager",
    "kv_cache_dtype",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
ARGUMENTS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "performance_mode",
    "enable_expert_parallel",
    "kv_cache_memory_bytes",
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "num_speculative_tokens_per_batch_size",
)
"""Arguments from the command line; vLLM writes only those that differ from its own choice."""
_CONFIGURED = re.compile(r"LLM engine .*? with config: (.*)")
_NOT_DEFAULT = re.compile(r"non-default args: (\{.*\})")
_SPECULATES = re.compile(
    r"\bspeculative_config=SpeculativeConfig\(method='(?P<method>[^']*)', "
    r"model=(?P<model>[^,]*)(?:, num_spec_tokens=(?P<tokens>\d+))?"
)
_MODE = re.compile(r"'mode': <CompilationMode\.(\w+)")
_COUNTED = re.compile(r"SpecDecoding metrics: .*?Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens")
_ATTENTION = re.compile(r"\bUsing (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend")
_KERNEL = re.compile(r"\] (?:Selected|Using) (?P<kernel>\w+) (?:backend )?for (?P<layers>.+)$")
_CHECKPOINT = re.compile(r"Checkpoint size: ([\d.]+) GiB")
_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
_RUNNING = re.compile(r"Running: (\d+) reqs")
_CAUSES = re.compile(
    r"(does not have native support|falling back|fall back|Disabling |[Dd]isabled|is not supported|are not supported|"
    r"does not support|[Cc]asting torch|Tried to force|Enforce eager set|load failure|is not used|will be ignored)"
)
_HARMLESS = re.compile(
    r"Async scheduling|Auto-prefetch is disabled|Scale-out endpoints|Inductor compilation was disabled|"
    r"min_p and logit_bias|Triton|tcmalloc|ulimit|KV cache events"
)
_MESSAGE = re.compile(r"^.*?\[[\w.]+:\d+\] ")
_CACHE_LABELS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Kernel(NamedTuple):
    name: str
    layers: str
    """The layers that it computes, in vLLM's words: the scheme of a quantized layer, or a kind of product."""


class LoggedSpeculation(NamedTuple):
    method: str
    model: str | None
    tokens: int | None


class EngineLog(NamedTuple):
    """The log of one start. `settings` is empty where the log has no configuration, `speculation` None where it says
    none."""

    settings: Mapping[str, str]
    speculation: LoggedSpeculation | None
    mode: str | None
    """Mode of compilation: NONE where it is off."""
    attention: str | None
    """The kernels of attention, by vLLM's name."""
    arguments: Mapping[str, str]
    kernels: tuple[Kernel, ...]
    checkpoint_gib: float | None
    cache_tokens: int | None
    running: int
    """The most sequences running at once."""
    accepted: int
    drafted: int
    causes: tuple[str, ...]
    """Lines that say that something is not done, or done in another way."""


def lines_since_last_start(lines: Iterable[str]) -> list[str]:
    """Return the lines from the last configuration on: earlier ones belong to another start."""
    listed = list(lines)
    configurations = [number for number, line in enumerate(listed) if _CONFIGURED.search(line)]
    return listed[configurations[-1] if configurations else 0 :]


def parse_engine_log(lines: Iterable[str]) -> EngineLog:
    """Parse the last start in these lines."""
    every = list(lines)
    since = lines_since_last_start(every)
    # 1. The configuration and the arguments, one line each.
    configuration = _first_match(_CONFIGURED, since) or ""
    arguments = _first_match(_NOT_DEFAULT, reversed(every)) or ""
    mode = _MODE.search(configuration)
    # 2. Kernels, running sequences and counts of drafts, over all lines.
    kernels: dict[Kernel, None] = {}
    running = accepted = drafted = 0
    for line in since:
        if match := _KERNEL.search(line):
            kernels[Kernel(*match.groups())] = None
        if match := _RUNNING.search(line):
            running = max(running, int(match[1]))
        if match := _COUNTED.search(line):
            accepted += int(match["accepted"])
            drafted += int(match["drafted"])
    # 3. Sizes.
    checkpoint, cache = _first_match(_CHECKPOINT, since), _first_match(_CACHE, since)
    return EngineLog(
        settings=_values(SETTINGS, r"\b{}=([^,\s]+)", configuration),
        speculation=_parse_speculation(configuration),
        mode=mode[1] if mode else None,
        attention=_first_match(_ATTENTION, since),
        arguments=_values(ARGUMENTS, r"'{}': '?([^,'}}]+|\[.*?\]\])", arguments),
        kernels=tuple(kernels),
        checkpoint_gib=float(checkpoint) if checkpoint else None,
        cache_tokens=int(cache.replace(",", "")) if cache else None,
        running=running,
        accepted=accepted,
        drafted=drafted,
        causes=tuple(dict.fromkeys(_MESSAGE.sub("", line).strip() for line in every if _is_cause(line))),
    )


def _values(names: Iterable[str], pattern: str, text: str) -> dict[str, str]:
    """Return the value of each name that the text has; `{}` in the pattern stands for the name."""
    values: dict[str, str] = {}
    for name in names:
        match = re.search(pattern.format(name), text)
        if match:
            values[name] = match[1].strip("'")
    return values


def parse_cache_settings(metrics: str) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info` of the first engine; empty where the server reports none."""
    match = _CACHE_LABELS.search(metrics)
    return dict(_LABEL.findall(match[1])) if match else {}


def _parse_speculation(configuration: str) -> LoggedSpeculation | None:
    match = _SPECULATES.search(configuration)
    if match is None:
        return None
    model = match["model"].strip("'")
    return LoggedSpeculation(
        match["method"], None if model == "None" else model, int(match["tokens"]) if match["tokens"] else None
    )


def _first_match(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    return next((match[1] for line in lines if (match := pattern.search(line))), None)


def _is_cause(line: str) -> bool:
    return _CONFIGURED.search(line) is None and _CAUSES.search(line) is not None and _HARMLESS.search(line) is None
