"""What one run of a load gathers, and the level that the runs of one load make. Knows nothing of schedules and searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import EvaluateOptions, Level
from backend.domain.evaluation.energy import added
from backend.domain.evaluation.metrics import summarise
from backend.domain.evaluation.prices import Pricing
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance, RequestRecord
from backend.worker.measuring import disturbance as neighbours


class Run(NamedTuple):
    """One run of one load. `joules` by counter, None of a server that was not started here; `speculated` (accepted, drafted)
    tokens of its time, None without speculation."""

    records: list[RequestRecord]
    audit: Audit
    disturbance: Disturbance
    joules: dict[str, float] | None
    speculated: tuple[int, int] | None


def level(load: Load, runs: Sequence[Run], options: EvaluateOptions) -> Level:
    """All its runs as one level, with who disturbed them most and the energy they took."""
    audits = [run.audit for run in runs]
    made = summarise(
        load,
        [run.records for run in runs],
        audits,
        pricing=pricing(options),
        acceptance=_acceptance(runs),
    )
    worst = neighbours.worst(run.disturbance for run in runs)
    audit = made.audit.model_copy(update={"disturbance": worst})
    spent = [(run.joules, sum(record.output_tokens or 0 for record in run.records)) for run in runs if run.joules is not None]
    return made.model_copy(update={"audit": audit, "energy": added(spent)})


def difference(before: tuple[float, float] | None, after: tuple[float, float] | None) -> tuple[int, int] | None:
    """(accepted, drafted) tokens between two readings of the counters; None where one of them is missing.

    Counters only rise: where one fell the server was started anew in between, and what it counted before is lost.
    """
    if before is None or after is None or any(end < start for start, end in zip(before, after, strict=True)):
        return None
    return int(after[0] - before[0]), int(after[1] - before[1])


def pricing(options: EvaluateOptions) -> Pricing | None:
    if options.price_per_hour is None:
        return None
    return Pricing(per_hour=options.price_per_hour, discount=options.discount, input_output_ratio=options.input_output_ratio)


def _acceptance(runs: Sequence[Run]) -> tuple[int, int] | None:
    found = [run.speculated for run in runs if run.speculated is not None]
    return (sum(accepted for accepted, _ in found), sum(drafted for _, drafted in found)) if found else None
