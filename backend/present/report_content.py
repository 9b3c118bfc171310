"""Content of a report besides the evaluation: single requests, changed answers, a what-if, other tools' results.

Pure. Its size is bounded: a few loads, a few variants, and samples that say how many values they stand for.
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
"""Fields of a record that the chart of a run does not need."""

Pair = tuple[int, str | None, str, str]
"""(block, prompt, the baseline's answer, the variant's)"""


class Spread(Frozen):
    """At most MOST_POINTS of `count` latencies in milliseconds, ascending: the ends and evenly spaced quantiles."""

    count: int
    values: tuple[float, ...]


class Run(Frozen):
    """One repeat of one variant: some of `requests` requests on `streams` streams, without texts and chunks."""

    requests: int
    streams: int
    shown_streams: int
    records: tuple[RequestRecord, ...]
    window: tuple[float, float] | None
    """Start and end of steady load over all requests, on the records' clock."""


class Answers(Frozen):
    """One prompt, both answers, and how far they agree; texts are cut after MOST_CHARACTERS."""

    prompt: str | None
    block: int
    baseline: str
    variant: str
    token_f1: float


class Changed(Frozen):
    """Answers of a variant and of the baseline: `same` of `compared` pairs have the same words; `most` differ most."""

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
    """Number of a variant's requests at a level within all limits, out of `of` measured ones."""

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
    """Source of an evaluation's single requests: memory, or its file."""

    def spreads(self, level: Level, names: Sequence[str]) -> dict[str, dict[str, Spread]]:
        """Return latency -> variant -> values of the measured requests at this load, over all repeats."""

    def run(self, level: Level, name: str) -> Sequence[RequestRecord]:
        """Return the requests of a variant's first repeat, warm-up included."""

    def pairs(self, level: Level, name: str) -> Iterable[Pair]:
        """Return the answers to requests that the baseline and the variant both answered."""


def gather(evaluation: Evaluation, source: Source) -> Requests | None:
    """Return what the report shows of single requests; None if nothing was measured."""
    # 1. Which levels and variants.
    levels, names = chosen_levels(evaluation), shown_variants(evaluation)
    if not levels:
        return None
    # 2. Runs and changed answers at the highest load.
    highest = levels[-1]
    runs = {}
    for name in names:
        records = source.run(highest, name)
        if records:
            runs[name] = shown_run(records)
    answers = {name: changed(source.pairs(highest, name)) for name in names[1:]}
    # 3. Latencies at every chosen load.
    return Requests(
        at=highest.load.words,
        loads=tuple(AtLoad(words=level.load.words, spreads=source.spreads(level, names)) for level in levels),
        runs=runs,
        changed={name: answer for name, answer in answers.items() if answer.compared},
    )


def chosen_levels(evaluation: Evaluation) -> list[Level]:
    """Return one level per load, at most MOST_LOADS: the lowest, the highest, and some evenly between."""
    by_load = {level.load: level for result in evaluation.variants for level in result.levels}
    ordered = [by_load[load] for load in sorted(by_load)]
    return [ordered[place] for place in evenly(len(ordered), MOST_LOADS)]


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` indices below `count`, ascending: both ends, and evenly spaced ones between."""
    if count <= most:
        return list(range(count))
    return sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})


def shown_variants(evaluation: Evaluation) -> list[str]:
    """Return the variants whose single requests are shown: the baseline and the first ones after it."""
    return [result.name for result in evaluation.variants[:MOST_VARIANTS]]


def spreads(records: Mapping[str, Sequence[RequestRecord]]) -> dict[str, dict[str, Spread]]:
    """Return latency -> variant -> values of measured records by variant."""
    spreads_by_metric: dict[str, dict[str, Spread]] = {}
    for metric in LATENCIES:
        all_spreads = {name: _spread(metric, own) for name, own in records.items()}
        spreads_by_metric[metric] = {name: spread for name, spread in all_spreads.items() if spread.count}
    return spreads_by_metric


def _spread(metric: str, records: Iterable[RequestRecord]) -> Spread:
    values = [latency_ms(metric, record) for record in records if not record.warm]
    return make_spread(value for value in values if value is not None)


def make_spread(values: Iterable[float]) -> Spread:
    rising = sorted(values)
    return Spread(count=len(rising), values=tuple(rising[place] for place in evenly(len(rising), MOST_POINTS)))


def shown_run(records: Sequence[RequestRecord]) -> Run:
    """Choose whole streams evenly, with at most MOST_REQUESTS requests; of a longer stream only the beginning."""
    # 1. Every n-th stream.
    numbers = sorted({record.stream for record in records})
    most = max(1, MOST_REQUESTS * len(numbers) // max(1, len(records)))
    chosen = set(numbers[:: -(-len(numbers) // most)]) if numbers else set()
    shown = sorted(
        (r for r in records if r.stream in chosen), key=lambda r: r.sent if r.sent is not None else r.intended
    )
    # 2. Their records, without the fields that the chart does not need.
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
    """Count the pairs with the same words, and return the pairs with the fewest words in common first."""
    listed = list(pairs)
    scored = sorted((token_f1(a, b), place) for place, (_, _, a, b) in enumerate(listed))
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
