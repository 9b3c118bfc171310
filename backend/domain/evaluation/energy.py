"""Energy of levels per output token, from the machine's own counters. Pure; `hardware.energy` reads the counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.resource_use import Energy

NONE_REPORTED = "This machine reports no energy."
BASIS = (
    "From the machine's counters ({sources}), over the whole time of each level: warm-up, load generator and idle "
    "power are "
    "included. Joules are divided by all output tokens of that time."
)


def total_energy(repeats: Iterable[tuple[Mapping[str, float], int]]) -> Energy | None:
    """Add up (joules by counter, output tokens) of each repeat. None where no counter is in every repeat."""
    listed = list(repeats)
    shared = set.intersection(*(set(joules) for joules, _ in listed)) if listed else set()
    if not shared:
        return None
    joules = {name: sum(by_counter[name] for by_counter, _ in listed) for name in sorted(shared)}
    return Energy(joules=joules, output_tokens=sum(tokens for _, tokens in listed))


def joules_per_token(level: Level) -> float | None:
    """Joules per output token. None where no energy was reported, or where answers came without token counts."""
    return level.energy.joules_per_output_token if level.energy and not level.tokenizer_failed else None


def energy_rows(evaluation: Evaluation) -> list[dict[str, str | int | float | None]]:
    """Make one table row for each variant and level with a figure. Empty where the machine reports no energy."""
    rows: list[dict[str, str | int | float | None]] = []
    for result in evaluation.variants:
        for level in result.levels:
            if level.energy is None:
                continue
            rows.append(
                {
                    "Variant": result.name,
                    "Concurrency": str(level.load.cell),
                    "Energy (J)": level.energy.total,
                    "Energy per output token (J)": joules_per_token(level),
                    **level.energy.joules,
                }
            )
    return rows


def energy_basis(evaluation: Evaluation) -> str:
    """Say which counters the figures come from, or that there are none."""
    sources: set[str] = set()
    for result in evaluation.variants:
        for level in result.levels:
            if level.energy is not None:
                sources |= set(level.energy.joules)
    return BASIS.format(sources=", ".join(sorted(sources))) if sources else NONE_REPORTED
