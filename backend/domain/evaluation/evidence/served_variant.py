"""The evidence of one start of a variant's server, and the wording of a finding about one setting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence.engine_log import EngineLog
from backend.domain.evaluation.evidence.schema import Aspect, Finding
from backend.domain.evaluation.startup import Startup

LOG = "the engine's log"


class LlamaCppFacts(NamedTuple):
    """The type and bytes of the weights, tokens of the cache and requests at one time, as llama.cpp's server says; what
    its log says of threads, the types of its cache (K, V) and speculation."""

    weights: str | None = None
    weight_bytes: int | None = None
    context: int | None = None
    slots: int | None = None
    threads: int | None = None
    batch_threads: int | None = None
    cache: tuple[str, str] | None = None
    speculation: str | None = None
    batch_tokens: int | None = None
    micro_batch_tokens: int | None = None
    flash_attention: str | None = None
    """`enabled`, `disabled` or `auto`, as its log says."""


class OpenVinoFacts(NamedTuple):
    """The file that Whetstone's server over OpenVINO GenAI says it read, the context that it keeps to, requests at one
    time, and the type of the cache by the size that GenAI reports."""

    file_bytes: int | None = None
    context: int | None = None
    slots: int | None = None
    cache_type: str | None = None
    prefix_caching: bool | None = None
    prompt_lookup: bool | None = None
    device: str | None = None
    step_tokens: int | None = None
    eviction_tokens: int | None = None
    sparse_attention: str | None = None


class StartEvidence(NamedTuple):
    """Evidence from one start of a server. `cache`: the settings of its cache that vLLM reports at `/metrics`;
    `llama_cpp`, `openvino`: what the server says of itself."""

    log: EngineLog
    cache: Mapping[str, str] = {}
    startup: Startup | None = None
    llama_cpp: LlamaCppFacts | None = None
    openvino: OpenVinoFacts | None = None


class ServedVariant(NamedTuple):
    """A variant as requested, the `config` of what it serves (config.json, empty where there is none), and the
    evidence."""

    variant: Variant
    config: Mapping[str, Any]
    evidence: StartEvidence
    levels: Sequence[Level]

    def setting(self, name: str) -> str | None:
        """Return a setting of the engine's configuration; None where its log does not have it."""
        return self.evidence.log.settings.get(name)

    def cause(self, *words: str, default: str = "") -> str:
        """Quote the first line of the log that gives a cause with one of these words; else `default`."""
        lower = [word.lower() for word in words]
        for line in self.evidence.log.causes:
            if any(word in line.lower() for word in lower):
                return f"The log says: {line.rstrip('.')}."
        return default


def compare_setting(what: Aspect, requested: str, logged: str | None, *, name: str, cause: str = "") -> Finding:
    """Compare a requested setting with the log's; `name` is its name there, `logged` None where the log has none."""
    if logged is None:
        return Finding(what=what, proven=None, words=f"{requested} was requested; {LOG} does not say {name}.")
    if logged == requested:
        return Finding(what=what, proven=True, words=f"{LOG[0].upper()}{LOG[1:]} says {name}={logged}.")
    words = f"{LOG[0].upper()}{LOG[1:]} says {name}={logged}, where {requested} was requested."
    return Finding(what=what, proven=False, words=words, cause=cause)
