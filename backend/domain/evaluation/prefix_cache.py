"""Estimates how many tokens of the prompts a server found in its prefix cache, and how many it could have found. Pure.

A server that keeps prefixes (vLLM's automatic prefix caching) answers a prompt faster that begins as an earlier one
did. Where the workload itself repeats beginnings, as conversations and shared instructions do, that is what is to be
measured; beyond it the load replayed prompts, and the level's times are not those of the prompts it claims to measure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import Level
from backend.domain.load.records import RequestRecord
from backend.domain.workload.workload import Prompt


class PrefixHits(NamedTuple):
    """Prompt tokens of a run: those that the server reports as cached (None where it does not), the most that the
    prompts themselves allow, and all."""

    reported: int | None
    expected: int
    prompts: int


class SentPrefixes:
    """The texts that one server was sent so far. `block`: tokens of a block of its cache, 1 where that is not known;
    `template`: tokens that a chat template may put before every prompt."""

    def __init__(self, prompts: Sequence[Prompt], *, block: int = 1, template: int = 0) -> None:
        self._prompts, self._block, self._template = prompts, max(1, block), template
        self._texts: list[str] = []
        """Sorted, so that the text with the longest common beginning is a neighbour."""

    def clear(self) -> None:
        """Forget what was sent: the server's cache is empty."""
        self._texts.clear()

    def record_run(self, records: Sequence[RequestRecord], counted: tuple[int, int] | None) -> PrefixHits:
        """Record the requests of one run, and return the hits of the measured ones.

        `counted`: (cached, all) prompt tokens by the server's own counters over the whole run, used where the answers
        do not report theirs.
        """
        # 1. The most that the prompts allow, from all requests in the order of sending.
        conversations = _conversations(self._prompts, records)
        expected = {id(record): self._record_text(record, text) for record, text in conversations}
        # 2. What the answers report, else the server's counters.
        answers = [record for record in records if record.ok and not record.warm and record.prompt_tokens is not None]
        prompts = sum(record.prompt_tokens or 0 for record in answers)
        reported = [record.cached_tokens for record in answers if record.cached_tokens is not None]
        hits = sum(reported) if answers and len(reported) == len(answers) else None
        if hits is None and counted is not None and counted[1]:
            hits = round(prompts * counted[0] / counted[1])
        return PrefixHits(hits, sum(expected.get(id(record), 0) for record in answers), prompts)

    def _record_text(self, record: RequestRecord, text: str) -> int:
        """Record a text and return the prompt tokens that earlier prompts or answers begin with, in whole blocks."""
        tokens, is_first = record.prompt_tokens or 0, not self._texts
        shared = self._longest_common(text) / len(text) if text else 0.0
        insort(self._texts, text + record.text)
        template = 0 if is_first else min(self._template, tokens)
        cached = template + (tokens - template) * shared
        return int(min(cached, max(0, tokens - 1)) // self._block) * self._block

    def _longest_common(self, text: str) -> int:
        """Return the characters that the text has in common with the beginning of any earlier one."""
        place = bisect_left(self._texts, text)
        return max((_common(text, other) for other in self._texts[max(0, place - 1) : place + 1]), default=0)


def _common(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first.startswith(second[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _conversations(prompts: Sequence[Prompt], records: Iterable[RequestRecord]) -> Iterable[tuple[RequestRecord, str]]:
    """Yield each request with all its words, in the order of sending; a turn has the conversation before it in
    front."""
    so_far: dict[int, str] = {}
    for record in sorted(records, key=lambda record: record.intended if record.sent is None else record.sent):
        prompt = prompts[record.prompt % len(prompts)]
        words = prompt.turns[record.turn] if prompt.turns and record.turn is not None else prompt.prompt
        if record.session is None:
            yield record, (prompt.system or "") + words
            continue
        text = so_far.get(record.session, prompt.system or "") + words
        so_far[record.session] = text + record.text
        yield record, text


def with_hit_rates(level: Level, runs: Sequence[PrefixHits]) -> Level:
    """Return the level with its hit rate and the highest that its prompts allow."""
    prompts = sum(run.prompts for run in runs)
    if not prompts:
        return level
    reported = [run.reported for run in runs if run.reported is not None]
    rate = sum(reported) / prompts if len(reported) == len(runs) else None
    return level.model_copy(
        update={"prefix_cache_hit_rate": rate, "prefix_cache_expected": sum(run.expected for run in runs) / prompts}
    )
