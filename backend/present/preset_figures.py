"""The figures of a preset, each kind in a type of its own so that they cannot be mixed up: estimated, and measured.
Pure.

Published figures are `presets.Claim`. Knows nothing of where evaluations are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.domain.evaluation.document import Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.machine.hardware_lines import hardware_line, versions_line
from backend.domain.planner.estimate import Estimate
from backend.domain.recipe.recipe import Recipe
from backend.present.words.verdicts import level_verdicts

CAME_ROUND = "Prompts came round: times to the first token are too low."


class Estimated(Frozen):
    """One estimate a concurrency, rising; none where the recipe is not valid there, and `why_not` says why."""

    levels: tuple[Estimate, ...] = ()
    why_not: str | None = None

    def at(self, concurrency: int) -> Estimate | None:
        return next((level for level in self.levels if level.load.concurrency == concurrency), None)


class MeasuredLevel(Frozen):
    """Medians in ms, throughputs in tokens/s, the price in the currency of the hourly price a million output tokens.

    `sound` is False where the load generator held the server back or many requests failed: not the server's figure.
    """

    concurrency: int
    repeats: int
    output_tokens_per_s: float | None
    output_tokens_per_s_per_request: float | None
    ttft_ms_p50: float | None
    tpot_ms_p50: float | None
    price_per_million_output: float | None
    sound: bool


class Measurement(Frozen):
    """A variant with the preset's model and recipe, as one evaluation measured it. `verdicts` hold it against the
    baseline."""

    evaluation: str
    bundled: bool
    variant: str
    baseline: str
    measured_at: str
    hardware: str
    versions: str
    workload: str
    price_per_hour: float | None
    """After the discount, in the evaluation's currency; None where none was given."""
    levels: tuple[MeasuredLevel, ...]
    quality: Quality | None
    verdicts: tuple[str, ...]
    came_round: bool = False
    """Of what comes with Whetstone: measured before prompts were asked once (decision 0019), so that no hit rate is
    known."""

    @property
    def provenance(self) -> str:
        """Where, when and with what, and what that makes of the figures."""
        where = f"Measured {self.measured_at[:16].replace('T', ' ')} on {self.hardware}, with {self.versions}."
        return f"{where} {CAME_ROUND}" if self.came_round else where

    def at(self, concurrency: int) -> MeasuredLevel | None:
        return next((level for level in self.levels if level.concurrency == concurrency), None)

    @property
    def best(self) -> MeasuredLevel | None:
        """The sound level with the most output tokens/s; None where no sound level has any."""
        told = (level for level in self.levels if level.sound and level.output_tokens_per_s is not None)
        return max(told, key=lambda level: level.output_tokens_per_s or 0.0, default=None)


def find(
    evaluation: Evaluation,
    wanted: Recipe,
    identity: str,
    recipes: Mapping[str, str] | None = None,
    *,
    bundled: bool = False,
) -> Measurement | None:
    """What the evaluation measured of that recipe on its baseline's model; None where it did not.

    `recipes` are hashes by the variants' sources, where they are better known than by the variant itself.
    """
    result = next((result for result in evaluation.variants if _is(result, wanted, evaluation, recipes or {})), None)
    return None if result is None else measurement(evaluation, result, identity, bundled)


def _is(result: VariantResult, wanted: Recipe, evaluation: Evaluation, recipes: Mapping[str, str]) -> bool:
    variant = result.variant
    if not wanted.steps:
        same_model = variant.kind == "model" and variant.model_path == evaluation.variants[0].variant.model_path
        return same_model and variant.serving == wanted.serving
    return recipes.get(variant.source, variant.recipe_hash) == wanted.hash


def measurement(evaluation: Evaluation, result: VariantResult, identity: str, bundled: bool = False) -> Measurement:
    """One variant of an evaluation."""
    options = evaluation.options
    hour = options.hourly_price(result.variant)
    return Measurement(
        evaluation=identity,
        bundled=bundled,
        variant=result.name,
        baseline=evaluation.variants[0].name,
        measured_at=evaluation.measured_at,
        hardware=hardware_line(evaluation.hardware),
        versions=versions_line(evaluation.versions),
        workload=evaluation.workload.name,
        price_per_hour=None if hour is None else hour * (1 - options.discount),
        levels=tuple(_level(level) for level in sorted(result.levels, key=lambda level: level.concurrency)),
        quality=result.quality,
        verdicts=tuple(verdict.text for verdict in level_verdicts(evaluation) if verdict.variant == result.name),
        came_round=bundled and any(level.prefix_cache_hit_rate is None for level in result.levels),
    )


def _level(level: Level) -> MeasuredLevel:
    return MeasuredLevel(
        concurrency=level.concurrency,
        repeats=level.repeats,
        output_tokens_per_s=level.output_tokens_per_s,
        output_tokens_per_s_per_request=level.output_tokens_per_s_per_request,
        ttft_ms_p50=level.ttft_ms.p50 if level.ttft_ms else None,
        tpot_ms_p50=level.tpot_ms.p50 if level.tpot_ms else None,
        price_per_million_output=level.price.per_million_output if level.price else None,
        sound=is_sound(level),
    )


def unique(found: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Each evaluation once, the latest first: a demonstration holds the bundled ones too, and its own copy leads
    somewhere."""
    kept: dict[str, Measurement] = {}
    for measurement in found:
        if measurement.evaluation not in kept or kept[measurement.evaluation].bundled:
            kept[measurement.evaluation] = measurement
    return tuple(sorted(kept.values(), key=lambda measurement: measurement.measured_at, reverse=True))
