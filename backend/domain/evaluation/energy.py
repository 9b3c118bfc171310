"""Energy of a level: what the machine's own counters say it used, by the output token. Pure; `hardware.energy` reads
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from backend.domain.frozen import Frozen

if TYPE_CHECKING:
    from backend.domain.evaluation.document import Evaluation, Level

NONE_REPORTED = "This machine reports no energy."
BASIS = (
    "By the counters of the machine ({sources}) over the whole time of each level: warm-up, load generator and idle power are "
    "in it. Joules are divided by all output tokens of that time."
)


class Energy(Frozen):
    """Joules over all repeats of a level, warm-up included, by counter, and the output tokens of that time."""

    joules: dict[str, float]
    output_tokens: int

    @property
    def total(self) -> float:
        return sum(self.joules.values())

    @property
    def joules_per_output_token(self) -> float | None:
        """None where no token was counted."""
        return self.total / self.output_tokens if self.output_tokens > 0 else None


def added(found: Iterable[tuple[Mapping[str, float], int]]) -> Energy | None:
    """Of (joules by counter, output tokens) of each repeat. None where no counter was there in every one of them."""
    listed = list(found)
    shared = set.intersection(*(set(joules) for joules, _ in listed)) if listed else set()
    if not shared:
        return None
    joules = {name: sum(each[name] for each, _ in listed) for name in sorted(shared)}
    return Energy(joules=joules, output_tokens=sum(tokens for _, tokens in listed))


def per_token(level: Level) -> float | None:
    """Joules an output token; None where it was not reported, and where answers did not tell their tokens."""
    return level.energy.joules_per_output_token if level.energy and not level.tokenizer_failed else None


def rows(evaluation: Evaluation) -> list[dict[str, str | int | float | None]]:
    """One a variant and level with a figure; none where the machine reports no energy."""
    return [
        {
            "Variant": result.name,
            "Concurrency": str(level.load.cell),
            "Energy (J)": level.energy.total,
            "Energy per output token (J)": per_token(level),
            **level.energy.joules,
        }
        for result in evaluation.variants
        for level in result.levels
        if level.energy is not None
    ]


def basis(evaluation: Evaluation) -> str:
    """What the figures are of, or that there are none."""
    levels = (level for result in evaluation.variants for level in result.levels)
    sources = sorted({name for level in levels if level.energy for name in level.energy.joules})
    return BASIS.format(sources=", ".join(sources)) if sources else NONE_REPORTED
