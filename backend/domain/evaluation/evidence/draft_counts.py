"""What came of guessing ahead over one level: by position from the server's counters, by kind of prompt from the
answers. Pure.

An answer's chunk is what one step of the server gave, so the tokens of its chunks are the lengths of its steps, also of
steps that had no draft. Where the server sends faster than it is read, two steps share a chunk (`coalesced`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from backend.domain.evaluation.evidence.schema import AnswerSteps, Drafting
from backend.domain.load import counters
from backend.domain.load.records import RequestRecord

MOST_KINDS = 12
"""The most frequent ones: a foreign file may name each line."""


def count_drafting(
    counted: Sequence[Mapping[str, int]], records: Iterable[RequestRecord], kinds: Sequence[str | None] = ()
) -> Drafting | None:
    """`counted`: what the server's counters say of each run; None where none of them speculated or told. `kinds`: of
    the workload's lines."""
    told = [run for run in counted if "drafted_tokens" in run]
    if not told:
        return None
    total: Counter[str] = Counter()
    for run in told:
        total.update(run)
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
    """Of measured answers whose tokens the server counted chunk by chunk, by kind of prompt; empty where no line has a
    kind."""
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        kind = kinds[record.prompt % len(kinds)] if kinds else None
        if (
            kind
            and record.ok
            and not record.warm
            and record.token_times == "continuous"
            and len(record.chunk_tokens) > 1
        ):
            found.setdefault(kind, []).append(record)
    often = sorted(found, key=lambda kind: (-len(found[kind]), kind))[:MOST_KINDS]
    return {kind: _steps(found[kind]) for kind in sorted(often)}


def _steps(records: Sequence[RequestRecord]) -> AnswerSteps:
    """The first chunk is of the prompt's own step, which nothing is guessed for."""
    return AnswerSteps(
        answers=len(records),
        chunks=sum(len(record.chunk_tokens) - 1 for record in records),
        tokens=sum(record.chunk_tokens[-1] - record.chunk_tokens[0] for record in records),
    )
