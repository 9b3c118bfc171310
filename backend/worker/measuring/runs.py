"""The record of one run, and the level that the runs of one load add up to.

Knows nothing of schedules and searches.
"""

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
from backend.worker.measuring.disturbance import worst


class MeasuredRun(NamedTuple):
    """Everything recorded about one run of one load."""

    records: list[RequestRecord]
    audit: Audit
    disturbance: Disturbance
    joules: dict[str, float] | None
    """Energy by counter; None for a server that was not started here."""
    counted: dict[str, int]
    """Increase of the server's own counters during the run."""
    hits: PrefixHits
    """Hits in the server's prefix cache."""


def summarise_runs(
    load: Load,
    runs: Sequence[MeasuredRun],
    options: EvaluateOptions,
    variant: Variant,
    kinds: Sequence[str | None] = (),
    late_blocks: Sequence[int] = (),
) -> Level:
    """Return the level that the runs of one load add up to, one of each block, without those of `late_blocks`.

    `kinds` are those of the workload's lines.
    """
    # 1. Count what was drafted and accepted.
    runs = [run for block, run in enumerate(runs) if block not in late_blocks]
    records = [record for run in runs for record in run.records]
    drafted = draft_counts.count_drafting([run.counted for run in runs], records, kinds)
    acceptance = None if drafted is None else (drafted.accepted_tokens, drafted.drafted_tokens)

    # 2. Summarise the requests.
    level = summarise_level(
        load,
        [run.records for run in runs],
        [run.audit for run in runs],
        pricing=pricing(options, variant),
        acceptance=acceptance,
        late_blocks=late_blocks,
    )

    # 3. Add the worst disturbance, the energy and the hits of the prefix cache.
    audit = level.audit.model_copy(update={"disturbance": worst(run.disturbance for run in runs)})
    energy = [
        (run.joules, sum(record.output_tokens or 0 for record in run.records)) for run in runs if run.joules is not None
    ]
    level = level.model_copy(update={"audit": audit, "energy": total_energy(energy), "drafting": drafted})
    return with_hit_rates(level, [run.hits for run in runs])


def pricing(options: EvaluateOptions, variant: Variant) -> Pricing | None:
    """Return the price of serving the variant, or None if it has no price per hour.

    A discount in the options replaces the discount that an endpoint's price already includes.
    """
    per_hour = options.hourly_price(variant)
    if per_hour is None:
        return None
    included = variant.remote.discount if variant.remote and options.discount else 0.0
    return Pricing(
        per_hour=per_hour / (1 - included), discount=options.discount, input_output_ratio=options.input_output_ratio
    )
