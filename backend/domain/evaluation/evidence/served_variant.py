"""What there is to judge one start of a variant's server by, and how a finding is worded from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence.engine_log import EngineLog
from backend.domain.evaluation.evidence.schema import Aspect, Finding
from backend.domain.evaluation.startup import Startup

LOG = "the engine's log"


class StartEvidence(NamedTuple):
    """What one start of a server showed. `cache`: its own settings of its cache, from `/metrics`."""

    log: EngineLog
    cache: Mapping[str, str] = {}
    startup: Startup | None = None


class ServedVariant(NamedTuple):
    """A variant as it was asked, `config` of what it serves (config.json, empty where there is none), and what was
    seen."""

    variant: Variant
    config: Mapping[str, Any]
    evidence: StartEvidence
    levels: Sequence[Level]

    def setting(self, name: str) -> str | None:
        """Of the engine's configuration; None where its log does not say it."""
        return self.evidence.log.settings.get(name)

    def cause(self, *words: str, default: str = "") -> str:
        """The first line of the log that says why, by any of these words."""
        lower = [word.lower() for word in words]
        found = next((line for line in self.evidence.log.causes if any(word in line.lower() for word in lower)), None)
        return f"The log says: {found.rstrip('.')}." if found else default


def compare_setting(what: Aspect, asked: str, seen: str | None, *, name: str, cause: str = "") -> Finding:
    """`name` is what the log calls it; `seen` None where it does not say it."""
    if seen is None:
        return Finding(what=what, proven=None, words=f"{asked} was asked; {LOG} does not say {name}.")
    if seen == asked:
        return Finding(what=what, proven=True, words=f"{LOG[0].upper()}{LOG[1:]} says {name}={seen}.")
    words = f"{LOG[0].upper()}{LOG[1:]} says {name}={seen}, where {asked} was asked."
    return Finding(what=what, proven=False, words=words, cause=cause)
