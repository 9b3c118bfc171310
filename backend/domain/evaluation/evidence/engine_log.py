"""What vLLM says of itself: its log since its last start, and the settings of its cache at `/metrics`. Pure.

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
    "quantization",
    "enforce_eager",
    "kv_cache_dtype",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
ARGUMENTS = (
    "max_num_seqs",
    "kv_cache_memory_bytes",
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "num_speculative_tokens_per_batch_size",
)
"""Of what was parsed from the command line, only what differs from vLLM's own choice is written."""
_CONFIGURED = re.compile(r"LLM engine .*? with config: (.*)")
_NOT_DEFAULT = re.compile(r"non-default args: (\{.*\})")
_SPECULATES = re.compile(
    r"\bspeculative_config=SpeculativeConfig\(method='(?P<method>[^']*)', "
    r"model=(?P<model>[^,]*)(?:, num_spec_tokens=(?P<tokens>\d+))?"
)
_MODE = re.compile(r"'mode': <CompilationMode\.(\w+)")
_COUNTED = re.compile(r"SpecDecoding metrics: .*?Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens")
_KERNEL = re.compile(r"\] (?:Selected|Using) (?P<kernel>\w+) (?:backend )?for (?P<layers>.+)$")
_CHECKPOINT = re.compile(r"Checkpoint size: ([\d.]+) GiB")
_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
_RUNNING = re.compile(r"Running: (\d+) reqs")
_CAUSES = re.compile(
    r"(does not have native support|falling back|fall back|Disabling |[Dd]isabled|is not supported|are not supported|"
    r"does not support|[Cc]asting torch|Tried to force|Enforce eager set|load failure|is not used|will be ignored)"
)
_HARMLESS = re.compile(
    r"Async scheduling|Auto-prefetch is disabled|Scale-out endpoints|Inductor compilation was disabled|min_p and logit_bias|"
    r"Triton|tcmalloc|ulimit|KV cache events"
)
_MESSAGE = re.compile(r"^.*?\[[\w.]+:\d+\] ")
_CACHE_LABELS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Kernel(NamedTuple):
    name: str
    layers: str
    """What it computes, in vLLM's words: the scheme of a quantized layer, or a kind of product."""


class LoggedSpeculation(NamedTuple):
    method: str
    model: str | None
    tokens: int | None


class EngineLog(NamedTuple):
    """Of one start. `settings` is empty where the log does not reach the configuration, `speculates` None where it says
    none."""

    settings: Mapping[str, str]
    speculates: LoggedSpeculation | None
    mode: str | None
    """Of compilation: NONE where it is off."""
    arguments: Mapping[str, str]
    kernels: tuple[Kernel, ...]
    checkpoint_gib: float | None
    cache_tokens: int | None
    running: int
    """The most sequences at once that it wrote of."""
    accepted: int
    drafted: int
    causes: tuple[str, ...]
    """Lines that say that something is not done, or done another way."""


def lines_since_last_start(lines: Iterable[str]) -> list[str]:
    """From the last configuration on: what an engine wrote before is of another one."""
    listed = list(lines)
    return listed[max((number for number, line in enumerate(listed) if _CONFIGURED.search(line)), default=0) :]


def parse_engine_log(lines: Iterable[str]) -> EngineLog:
    """Of the last start in these lines."""
    every = list(lines)
    since = lines_since_last_start(every)
    configured, arguments = _first(_CONFIGURED, since) or "", _first(_NOT_DEFAULT, reversed(every)) or ""
    mode = _MODE.search(configured)
    counts = [(int(match["accepted"]), int(match["drafted"])) for line in since if (match := _COUNTED.search(line))]
    checkpoint, cache = _first(_CHECKPOINT, since), _first(_CACHE, since)
    return EngineLog(
        settings={
            name: match[1].strip("'") for name in SETTINGS if (match := re.search(rf"\b{name}=([^,\s]+)", configured))
        },
        speculates=_speculates(configured),
        mode=mode and mode[1],
        arguments={
            name: match[1]
            for name in ARGUMENTS
            if (match := re.search(rf"'{name}': '?([^,'}}]+|\[.*?\]\])", arguments))
        },
        kernels=tuple(dict.fromkeys(Kernel(*match.groups()) for line in since if (match := _KERNEL.search(line)))),
        checkpoint_gib=float(checkpoint) if checkpoint else None,
        cache_tokens=int(cache.replace(",", "")) if cache else None,
        running=max((int(match[1]) for line in since if (match := _RUNNING.search(line))), default=0),
        accepted=sum(pair[0] for pair in counts),
        drafted=sum(pair[1] for pair in counts),
        causes=tuple(dict.fromkeys(_MESSAGE.sub("", line).strip() for line in every if _is_cause(line))),
    )


def parse_cache_settings(metrics: str) -> dict[str, str]:
    """The labels of `vllm:cache_config_info`, the first engine's; empty where the server tells none."""
    found = _CACHE_LABELS.search(metrics)
    return dict(_LABEL.findall(found[1])) if found else {}


def _speculates(configured: str) -> LoggedSpeculation | None:
    match = _SPECULATES.search(configured)
    if match is None:
        return None
    model = match["model"].strip("'")
    return LoggedSpeculation(
        match["method"], None if model == "None" else model, int(match["tokens"]) if match["tokens"] else None
    )


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    return next((match[1] for line in lines if (match := pattern.search(line))), None)


def _is_cause(line: str) -> bool:
    return _CONFIGURED.search(line) is None and _CAUSES.search(line) is not None and _HARMLESS.search(line) is None
