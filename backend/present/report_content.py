"""What a report shows beside the evaluation document: single requests, changed answers, a what-if, other tools'
results. Pure.

Bounded, whatever the evaluation: a few loads, a few variants, samples that say what they are samples of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from backend.domain.evaluation.answer_agreement import is_exact_match, token_f1
from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.metrics import latency_ms, steady_window
from backend.domain.frozen import Frozen
from backend.domain.imported.imported_result import ImportedResult
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.what_if.costs import WhatIf

LATENCIES = {"ttft_ms": "Time to first token", "tpot_ms": "Inter-token latency", "client_latency_ms": "Client latency"}
MOST_LOADS, MOST_VARIANTS, MOST_REQUESTS, MOST_POINTS, MOST_ANSWERS, MOST_CHARACTERS = 3, 6, 240, 200, 3, 1500
LIGHT = {"chunk_times", "chunk_tokens", "text", "error", "reads", "coalesced"}
"""Of a record, what a chart of a run does not need."""


Pair = tuple[int, str | None, str, str]
"""(block, prompt, the baseline's answer, the variant's)"""


class Spread(Frozen):
    """Of `count` latencies in milliseconds, at most MOST_POINTS: the ends and quantiles evenly apart, rising."""

    count: int
    values: tuple[float, ...]


class Run(Frozen):
    """One repeat of one variant: of `requests` requests on `streams` streams, those shown, without texts and chunks."""

    requests: int
    streams: int
    shown_streams: int
    records: tuple[RequestRecord, ...]
    window: tuple[float, float] | None
    """Of steady load, on the records' clock; over all requests."""


class Answers(Frozen):
    """One prompt, both answers, and how far they agree; texts cut after MOST_CHARACTERS."""

    prompt: str | None
    block: int
    baseline: str
    variant: str
    token_f1: float


class Changed(Frozen):
    """Answers of a variant against the baseline's: of `compared` pairs, `same` have the same words; the most different
    ones."""

    compared: int
    same: int
    most: tuple[Answers, ...]


class AtLoad(Frozen):
    """Single requests at one load. `spreads`: latency -> variant -> values."""

    words: str
    spreads: dict[str, dict[str, Spread]]


class Requests(Frozen):
    """`runs` and `changed` by variant, at the highest load, in words `at`."""

    at: str
    loads: tuple[AtLoad, ...]
    runs: dict[str, Run]
    changed: dict[str, Changed]


class Within(Frozen):
    """Of `of` measured requests of a variant at a level, those whose every latency is within the limits."""

    variant: str
    load: Load
    within: int
    of: int


class Extras(Frozen):
    requests: Requests | None = None
    what_if: WhatIf = WhatIf()
    goodput: tuple[Within, ...] = ()
    imported: tuple[ImportedResult, ...] = ()


class Source(Protocol):
    """Where the single requests of an evaluation are: in memory, or in its file."""

    def spreads(self, level: Level, names: Sequence[str]) -> dict[str, dict[str, Spread]]:
        """Latency -> variant -> values of the measured requests at this load, over all repeats."""

    def run(self, level: Level, name: str) -> Sequence[RequestRecord]:
        """Those of a variant's first repeat, warm-up too."""

    def pairs(self, level: Level, name: str) -> Iterable[Pair]:
        """Of the requests that the baseline and the variant both answered."""


def gather(evaluation: Evaluation, source: Source) -> Requests | None:
    """What the report shows of single requests; None where nothing was measured."""
    levels, names = chosen_levels(evaluation), shown_variants(evaluation)
    if not levels:
        return None
    highest = levels[-1]
    runs = {name: run_of(found) for name in names if (found := source.run(highest, name))}
    answers = {name: changed(source.pairs(highest, name)) for name in names[1:]}
    return Requests(
        at=highest.load.words,
        loads=tuple(AtLoad(words=level.load.words, spreads=source.spreads(level, names)) for level in levels),
        runs=runs,
        changed={name: found for name, found in answers.items() if found.compared},
    )


def chosen_levels(evaluation: Evaluation) -> list[Level]:
    """One level a load, at most MOST_LOADS: the lowest, the highest, and those evenly between."""
    levels = (level for result in evaluation.variants for level in result.levels)
    found = {level.load: level for level in levels}
    ordered = [found[load] for load in sorted(found)]
    return [ordered[place] for place in evenly(len(ordered), MOST_LOADS)]


def evenly(count: int, most: int) -> list[int]:
    """At most so many of `count` places, rising: both ends, and those evenly between."""
    if count <= most:
        return list(range(count))
    return sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})


def shown_variants(evaluation: Evaluation) -> list[str]:
    """Those of which single requests are shown: the baseline and the first after it."""
    return [result.name for result in evaluation.variants[:MOST_VARIANTS]]


def spreads(records: Mapping[str, Sequence[RequestRecord]]) -> dict[str, dict[str, Spread]]:
    """Of measured records by variant."""
    return {
        metric: {name: spread for name, own in records.items() if (spread := _spread(metric, own)).count}
        for metric in LATENCIES
    }


def _spread(metric: str, records: Iterable[RequestRecord]) -> Spread:
    return spread_of([value for each in records if not each.warm and (value := latency_ms(metric, each)) is not None])


def spread_of(values: Iterable[float]) -> Spread:
    rising = sorted(values)
    return Spread(count=len(rising), values=tuple(rising[place] for place in evenly(len(rising), MOST_POINTS)))


def run_of(records: Sequence[RequestRecord]) -> Run:
    """Whole streams, evenly chosen, with at most MOST_REQUESTS requests; of one longer than that its beginning."""
    numbers = sorted({record.stream for record in records})
    most = max(1, MOST_REQUESTS * len(numbers) // max(1, len(records)))
    kept = set(numbers[:: -(-len(numbers) // most)]) if numbers else set()
    shown = sorted((r for r in records if r.stream in kept), key=lambda r: r.sent if r.sent is not None else r.intended)
    emptied = {name: RequestRecord.model_fields[name].get_default() for name in LIGHT}
    light = tuple(record.model_copy(update=emptied) for record in shown[:MOST_REQUESTS])
    return Run(
        requests=len(records),
        streams=len(numbers),
        shown_streams=len({r.stream for r in light}),
        records=light,
        window=steady_window(records),
    )


def changed(pairs: Iterable[Pair]) -> Changed:
    """Those with the fewest words in common first."""
    listed = list(pairs)
    scored = sorted(((token_f1(a, b), place) for place, (_, _, a, b) in enumerate(listed)), key=lambda each: each)
    most = [_answers(listed[place], score) for score, place in scored[:MOST_ANSWERS]]
    same = sum(is_exact_match(a, b) for _, _, a, b in listed)
    return Changed(compared=len(listed), same=same, most=tuple(most))


def _answers(pair: Pair, score: float) -> Answers:
    block, prompt, first, second = pair
    return Answers(
        prompt=None if prompt is None else cut(prompt),
        block=block,
        baseline=cut(first),
        variant=cut(second),
        token_f1=score,
    )


def cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
