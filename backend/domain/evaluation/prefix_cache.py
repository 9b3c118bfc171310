"""How much of the prompts a server had kept from earlier ones, and how much it could have kept of these at most. Pure.

A server that keeps prefixes (vLLM's automatic prefix caching) answers a prompt faster that begins as an earlier one
did. Where the workload itself repeats beginnings, as conversations and shared instructions do, that is what is to be
measured; beyond it the load replayed prompts, and the level's times are not those of the prompts that it says it asked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import Level
from backend.domain.load.records import RequestRecord
from backend.domain.workload.workload import Prompt


class PrefixHits(NamedTuple):
    """Prompt tokens of a run: those that the server says it had kept (None where it does not tell), those that it had
    kept at most by the prompts themselves, and all."""

    told: int | None
    expected: int
    prompts: int


class SentPrefixes:
    """What one server was sent so far. `block`: tokens that its cache keeps together; 1 where that is not known."""

    def __init__(self, prompts: Sequence[Prompt], *, block: int = 1, template: int = 0) -> None:
        self._prompts, self._block, self._template = prompts, max(1, block), template
        """`template`: tokens that a chat template may set before every prompt."""
        self._texts: list[str] = []

    def forget(self) -> None:
        """Nothing is left of what was sent."""
        self._texts.clear()

    def sent(self, records: Sequence[RequestRecord], counted: tuple[int, int] | None) -> PrefixHits:
        """The hits of the measured requests of one run. `counted`: (hit, asked) tokens by the server's own counters
        over the whole run, used where the answers do not tell theirs."""
        expected = {id(record): self._kept(record, text) for record, text in _conversations(self._prompts, records)}
        answers = [record for record in records if record.ok and not record.warm and record.prompt_tokens is not None]
        prompts = sum(record.prompt_tokens or 0 for record in answers)
        told = [record.cached_tokens for record in answers if record.cached_tokens is not None]
        hits = sum(told) if answers and len(told) == len(answers) else None
        if hits is None and counted is not None and counted[1]:
            hits = round(prompts * counted[0] / counted[1])
        return PrefixHits(hits, sum(expected.get(id(record), 0) for record in answers), prompts)

    def _kept(self, record: RequestRecord, text: str) -> int:
        """Tokens of the prompt that earlier prompts or answers begin with, in whole blocks; then it is one of them
        itself."""
        tokens, first = record.prompt_tokens or 0, not self._texts
        shared = self._longest(text) / len(text) if text else 0.0
        insort(self._texts, text + record.text)
        begun = 0 if first else min(self._template, tokens)
        kept = begun + (tokens - begun) * shared
        return int(min(kept, max(0, tokens - 1)) // self._block) * self._block

    def _longest(self, text: str) -> int:
        """Characters that it has in common with the beginning of any earlier one: with a neighbour in their order."""
        place = bisect_left(self._texts, text)
        return max((_common(text, other) for other in self._texts[max(0, place - 1) : place + 1]), default=0)


def _common(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first.startswith(second[:middle]) else (low, middle - 1)
    return low


def _conversations(prompts: Sequence[Prompt], records: Iterable[RequestRecord]) -> Iterable[tuple[RequestRecord, str]]:
    """Each request with all its words, in the order of sending; a conversation's have those of the turns before it in
    front."""
    so_far: dict[int, str] = {}
    for record in sorted(records, key=lambda each: each.intended if each.sent is None else each.sent):
        prompt = prompts[record.prompt % len(prompts)]
        words = prompt.turns[record.turn] if prompt.turns and record.turn is not None else prompt.prompt
        if record.session is None:
            yield record, (prompt.system or "") + words
            continue
        text = so_far.get(record.session, prompt.system or "") + words
        so_far[record.session] = text + record.text
        yield record, text


def with_hit_rates(level: Level, runs: Sequence[PrefixHits]) -> Level:
    """The level with its hit rate, and the one that its prompts give at most."""
    prompts = sum(run.prompts for run in runs)
    if not prompts:
        return level
    told = [run.told for run in runs if run.told is not None]
    rate = sum(told) / prompts if len(told) == len(runs) else None
    return level.model_copy(
        update={"prefix_cache_hit_rate": rate, "prefix_cache_expected": sum(run.expected for run in runs) / prompts}
    )
