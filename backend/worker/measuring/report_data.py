"""Collects the single requests that the report shows, while the evaluation still has them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Level
from backend.domain.load import order
from backend.domain.load.records import RequestRecord
from backend.domain.workload.workload import Workload
from backend.present.report_content import Extras, Pair, Spread, gather, spreads
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.records import MeasuredLevel

Runs = Sequence[Sequence[RequestRecord]]


def build_extras(evaluation: Evaluation, measurement: Measurement) -> Extras:
    names = [variant.name for variant in measurement.spec.variants]
    return Extras(
        requests=gather(
            evaluation, InMemorySource(names, list(measurement.rows()), measurement.workload, evaluation.options)
        )
    )


class InMemorySource:
    """A `Source` of the report that reads the runs of an evaluation in memory."""

    def __init__(
        self, names: Sequence[str], rows: Sequence[MeasuredLevel], workload: Workload, options: EvaluateOptions
    ) -> None:
        self._names, self._workload, self._options = names, workload, options
        self._runs = {(names[row.variant], row.load): row.runs for row in rows}

    def spreads(self, level: Level, names: Sequence[str]) -> dict[str, dict[str, Spread]]:
        late = level.audit.late_blocks
        used = {
            name: [run for block, run in enumerate(self._runs_of(name, level)) if block not in late] for name in names
        }
        return spreads({name: list(chain.from_iterable(runs)) for name, runs in used.items()})

    def run(self, level: Level, name: str) -> Sequence[RequestRecord]:
        return next(iter(self._runs_of(name, level)), ())

    def pairs(self, level: Level, name: str) -> Iterator[Pair]:
        baseline_runs, variant_runs = self._runs_of(self._names[0], level), self._runs_of(name, level)
        for block, (ours, theirs) in enumerate(zip(baseline_runs, variant_runs, strict=False)):
            for record, other in order.request_pairs(ours, theirs):
                yield block, self._prompt(record), record.text, other.text

    def _runs_of(self, name: str, level: Level) -> Runs:
        return self._runs.get((name, level.load), ())

    def _prompt(self, record: RequestRecord) -> str | None:
        """Return the request's prompt; None for a trace, whose lines are sent in the order of their times."""
        return None if self._options.trace else self._workload.prompts[record.prompt].turn(record.turn)
