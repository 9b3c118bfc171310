"""Whether a level's figures are the server's, and why not, in words. Knows nothing of how levels are measured or drawn."""

from __future__ import annotations

from typing import Literal

from backend.domain.evaluation.document import Level

Valid = Literal["yes", "in part", "no"]
"""`in part`: its latencies are the server's, and its throughput in tokens is not known."""


SHARED = "Load generator and server share this machine's processors."
"""Holds of every server that is started on the machine of the load generator: a condition rather than a warning."""


def valid(level: Level) -> Valid:
    """What a table of validity says of it."""
    if not is_sound(level):
        return "no"
    return "in part" if level.tokenizer_failed or level.output_tokens_per_s is None else "yes"


def reasons(level: Level) -> list[str]:
    """Why it is not valid, or only in part: none where it is."""
    limited = list(level.audit.reasons) or ["the load generator held it back"] * level.client_limited
    failed = [f"{level.invocation_errors} of {level.invocations} requests failed"] if has_many_errors(level) else []
    return limited + failed + _unknown(level)


def _unknown(level: Level) -> list[str]:
    if level.tokenizer_failed:
        return [f"{uncounted(level)}, so tokens/s and prices are not known"]
    return ["no answer told its tokens, so tokens/s and prices are not known"] if level.output_tokens_per_s is None else []


def is_sound(level: Level) -> bool:
    """Its figures are the server's, and nearly every request was answered."""
    return not level.client_limited and not has_many_errors(level)


MAX_ERROR_SHARE = 0.01


def has_many_errors(level: Level) -> bool:
    """More than one request in a hundred failed: the rest is not a fair sample."""
    return level.invocation_errors > MAX_ERROR_SHARE * level.invocations


def uncounted(level: Level) -> str:
    """`2 of 40 answers came without a token count`."""
    return f"{level.tokenizer_failed:,} of {level.answers:,} answers came without a token count"
