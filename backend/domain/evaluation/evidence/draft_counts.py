"""Counts what drafting gave over one level: by position from the server's counters, by kind of prompt from answers.
Pure.

A chunk of an answer is the result of one step of the server, so the tokens of its chunks are the lengths of its steps,
also of steps without a draft. Where the server sends faster than it is read, two steps share a chunk (`coalesced`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from backend.domain.evaluation.evidence.schema import AnswerSteps, Drafting
from backend.domain.load import counters
from backend.domain.load.records import RequestRecord

MOST_KINDS = 12
"""Only the most frequent kinds are counted: a foreign file may give each line its own."""


def count_drafting(
    counted: Sequence[Mapping[str, int]], records: Iterable[RequestRecord], kinds: Sequence[str | None] = ()
) -> Drafting | None:
    """Add up the drafting of all runs of a level; None where no run speculated or reported counts.

    `counted`: the server's counters of each run; `kinds`: of the workload's lines.
    """
    # 1. Counters of all runs.
    runs = [run for run in counted if "drafted_tokens" in run]
    if not runs:
        return None
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run)
    # 2. Accepted tokens by their place in the draft.
    positions = sum(name.startswith(counters.ACCEPTED_AT) for name in total)
    return Drafting(
        drafts=total["drafts"],
        drafted_tokens=total["drafted_tokens"],
        accepted_tokens=total["accepted_tokens"],
        accepted_by_position=tuple(total[f"{counters.ACCEPTED_AT}{position}"] for position in range(positions)),
        generated_tokens=total.get("generation_tokens"),
        steps=count_steps(records, kinds),
    )


def count_steps(records: Iterable[RequestRecord], kinds: Sequence[str | None]) -> dict[str, AnswerSteps]:
    """Count the steps of measured answers by kind of prompt; empty where no line has a kind.

    Only answers whose tokens the server counted chunk by chunk have steps.
    """
    by_kind: dict[str, list[RequestRecord]] = {}
    for record in records:
        kind = kinds[record.prompt % len(kinds)] if kinds else None
        if kind and _has_steps(record):
            by_kind.setdefault(kind, []).append(record)
    frequent = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))[:MOST_KINDS]
    return {kind: _sum_steps(by_kind[kind]) for kind in sorted(frequent)}


def _has_steps(record: RequestRecord) -> bool:
    is_measured = record.ok and not record.warm
    return is_measured and record.token_times == "continuous" and len(record.chunk_tokens) > 1


def _sum_steps(records: Sequence[RequestRecord]) -> AnswerSteps:
    """Add up answers without their first chunk, which comes from the prompt's own step and never has a draft."""
    return AnswerSteps(
        answers=len(records),
        chunks=sum(len(record.chunk_tokens) - 1 for record in records),
        tokens=sum(record.chunk_tokens[-1] - record.chunk_tokens[0] for record in records),
    )
