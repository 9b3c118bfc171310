"""Whether a level's figures are the server's, and why not, in words. Knows nothing of how levels are measured or drawn."""

from __future__ import annotations

from typing import Literal

from backend.domain.evaluation.comparison import has_many_errors
from backend.domain.evaluation.document import Level
from backend.domain.limits.slo import is_sound
from backend.present.words.verdicts import uncounted

Valid = Literal["yes", "in part", "no"]
"""`in part`: its latencies are the server's, and its throughput in tokens is not known."""


def valid(level: Level) -> Valid:
    """What a table of validity says of it."""
    if not is_sound(level):
        return "no"
    return "in part" if level.tokenizer_failed or level.output_tokens_per_s is None else "yes"


def reasons(level: Level) -> list[str]:
    """Why it is not valid, or only in part: none where it is."""
    limited = list(map(str, level.audit.get("reasons") or ())) or ["the load generator held it back"] * level.client_limited
    failed = [f"{level.invocation_errors} of {level.invocations} requests failed"] if has_many_errors(level) else []
    return limited + failed + _unknown(level)


def _unknown(level: Level) -> list[str]:
    if level.tokenizer_failed:
        return [f"{uncounted(level)}, so tokens/s and prices are not known"]
    return ["no answer told its tokens, so tokens/s and prices are not known"] if level.output_tokens_per_s is None else []
