"""What one run of a load gathers, and the level that the runs of one load make. Knows nothing of schedules and
searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import EvaluateOptions, Level, Variant
from backend.domain.evaluation.energy import total_energy
from backend.domain.evaluation.evidence import draft_counts
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.evaluation.prefix_cache import PrefixHits, with_hit_rates
from backend.domain.evaluation.prices import Pricing
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance, RequestRecord
from backend.worker.measuring import disturbance as neighbours


class MeasuredRun(NamedTuple):
    """One run of one load. `joules` by counter, None of a server that was not started here; `counted` what the server's
    own counters say of its time; `hits` of its prefix cache."""

    records: list[RequestRecord]
    audit: Audit
    disturbance: Disturbance
    joules: dict[str, float] | None
    counted: dict[str, int]
    hits: PrefixHits


def summarise_runs(
    load: Load,
    runs: Sequence[MeasuredRun],
    options: EvaluateOptions,
    variant: Variant,
    kinds: Sequence[str | None] = (),
) -> Level:
    """All its runs as one level, with who disturbed them most and the energy they took. `kinds`: of the workload's
    lines."""
    audits = [run.audit for run in runs]
    drafted = draft_counts.count_drafting(
        [run.counted for run in runs], [record for run in runs for record in run.records], kinds
    )
    made = summarise_level(
        load,
        [run.records for run in runs],
        audits,
        pricing=pricing(options, variant),
        acceptance=None if drafted is None else (drafted.accepted_tokens, drafted.drafted_tokens),
    )
    worst = neighbours.worst(run.disturbance for run in runs)
    audit = made.audit.model_copy(update={"disturbance": worst})
    spent = [
        (run.joules, sum(record.output_tokens or 0 for record in run.records)) for run in runs if run.joules is not None
    ]
    return with_hit_rates(
        made.model_copy(update={"audit": audit, "energy": total_energy(spent), "drafting": drafted}),
        [run.hits for run in runs],
    )


def pricing(options: EvaluateOptions, variant: Variant) -> Pricing | None:
    """A discount that was asked for stands in place of the one that the price of an endpoint has already."""
    hour = options.hourly_price(variant)
    if hour is None:
        return None
    taken = variant.remote.discount if variant.remote and options.discount else 0.0
    return Pricing(
        per_hour=hour / (1 - taken), discount=options.discount, input_output_ratio=options.input_output_ratio
    )
