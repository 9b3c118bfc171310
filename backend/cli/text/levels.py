"""Levels of load as a table of text, with what must be said beside the figures."""

from __future__ import annotations

from typing import Any

from backend.cli.output import table
from backend.domain.evaluation.document import Level
from backend.domain.evaluation.soundness import (
    buffered_words,
    is_buffered,
    is_replayed,
    is_silent,
    replayed_words,
    silent_words,
)
from backend.domain.load.load import Load

LATENCIES = (("TTFT p50 ms", "ttft_ms"), ("TPOT p50 ms", "tpot_ms"), ("latency p50 ms", "client_latency_ms"))
PER_REQUEST = (
    ("tok/s/req", "output_tokens_per_s_per_request"),
    ("accept", "acceptance_rate"),
    ("cache hits", "prefix_cache_hit_rate"),
)


def levels_table(levels: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a table with one row for each (variant, level); with columns for rates and, in a sweep, for objectives."""
    clocked = any(level["load"]["mode"] != "closed" for _, level in levels)
    swept = any(level.get("slo") for _, level in levels)
    header = ["variant", *(["req/s target", "req/s", "under way"] if clocked else ["streams"])]
    header += [*(name for name, _ in LATENCIES), "out tok/s", *(name for name, _ in PER_REQUEST), "USD/M out", "errors"]
    header += ["objectives", "mark"] if swept else []
    rows = [_row(name, level, clocked=clocked, swept=swept) for name, level in levels]
    notes = [f"{name}, {Load(**level['load']).words}: {note}" for name, level in levels for note in _notes(level)]
    return "\n".join([table(header, rows), *notes])


def _row(name: str, level: dict[str, Any], *, clocked: bool, swept: bool) -> list[Any]:
    medians = [(level[metric] or {}).get("p50") for _, metric in LATENCIES]
    slo = level.get("slo") or {}
    marks = ", ".join(word for word in ("highest", "knee") if slo.get(word))
    return [
        name,
        *([level["load"]["value"] or None, level["requests_per_s"]] if clocked else []),
        level["concurrency"],
        *medians,
        level["output_tokens_per_s"],
        *(level[metric] for _, metric in PER_REQUEST),
        (level.get("price") or {}).get("per_million_output"),
        level["invocation_errors"],
        *([slo.get("verdict"), marks] if swept else []),
    ]


def _notes(level: dict[str, Any]) -> list[str]:
    """Return notes on a level: errors by kind, uncounted tokens, a client that limited the server."""
    notes = []
    # Requests that failed, and answers without tokens.
    if level["errors"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in level["errors"].items())
        notes.append(f"{level['invocation_errors']} of {level['invocations']} requests failed: {kinds}")
    if level["tokenizer_failed"]:
        notes.append(
            f"{level['tokenizer_failed']} answers came without a token count, so tokens/s and prices are not known"
        )
    if empty := level["empty_responses"] - level["tokenizer_failed"]:
        notes.append(f"{empty} answers were empty")
    # Reasons why the figures are not valid, or not the server's.
    read = Level.model_validate(level | {"acceptance_rate": None})
    notes += [f"not valid: {silent_words(read)}"] * is_silent(read) + [
        f"not valid: {replayed_words(read)}"
    ] * is_replayed(read)
    notes += [buffered_words(read)] * is_buffered(read)
    return notes + [f"not the server's figures: {reason}" for reason in level["audit"]["reasons"]]
