"""Figures of a preset, estimated and measured, each in a type of its own so that they cannot be mixed up. Pure.

Published figures are `presets.Claim`. Where evaluations are stored is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.domain.evaluation.document import Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import artifact_of
from backend.domain.load.load import Load
from backend.domain.machine.hardware_lines import hardware_line, versions_line
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe
from backend.present import load_words
from backend.present.words.verdicts import level_verdicts

CAME_ROUND = "Prompts were repeated: times to first token are too low."


class Estimated(Frozen):
    """One estimate per load: concurrencies ascending, then a rate; empty if the recipe is not valid there, and
    `why_not` says why."""

    levels: tuple[Estimate, ...] = ()
    why_not: str | None = None

    def at(self, load: ExpectedLoad) -> Estimate | None:
        """Return the estimate for the concurrency or the rate of a load; None if there is none."""
        return next((level for level in self.levels if level.load.is_asked_by(load)), None)


class MeasuredLevel(Frozen):
    """Medians in ms, throughputs in tokens/s, the price in USD per million output tokens.

    `sound` is False if the load generator limited the server or many requests failed: not the server's figure.
    """

    concurrency: int
    load: Load
    repeats: int
    output_tokens_per_s: float | None
    output_tokens_per_s_per_request: float | None
    ttft_ms_p50: float | None
    tpot_ms_p50: float | None
    price_per_million_output: float | None
    sound: bool


class Measurement(Frozen):
    """A variant with the preset's model and recipe, as one evaluation measured it; `verdicts` compare it with the
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
    """USD, after the discount; None if the evaluation has no price."""
    levels: tuple[MeasuredLevel, ...]
    quality: Quality | None
    verdicts: tuple[str, ...]
    came_round: bool = False
    """True of bundled figures measured before decision 0019: prompts were repeated, and no hit rate is known."""
    tokens: tuple[float, float] | None = None
    """Mean tokens of prompts and answers; None where they were not counted."""

    @property
    def provenance(self) -> str:
        """Return where, when and with what it was measured, and a caveat if there is one."""
        where = f"Measured {self.measured_at[:16].replace('T', ' ')} on {self.hardware}, with {self.versions}."
        return f"{where} {CAME_ROUND}" if self.came_round else where

    def at(self, concurrency: int) -> MeasuredLevel | None:
        return next((level for level in self.levels if level.concurrency == concurrency), None)

    @property
    def best(self) -> MeasuredLevel | None:
        """Return the sound level with the most output tokens/s; None if no sound level has any."""
        sound = (level for level in self.levels if level.sound and level.output_tokens_per_s is not None)
        return max(sound, key=lambda level: level.output_tokens_per_s or 0.0, default=None)


def find(
    evaluation: Evaluation,
    recipe: Recipe,
    identity: str,
    recipes: Mapping[str, str] | None = None,
    *,
    bundled: bool = False,
) -> Measurement | None:
    """Return the measurement of that recipe on the baseline's model; None if the evaluation has none.

    `recipes`: hashes by the variants' sources, where these are better known than from the variant itself.
    """
    for result in evaluation.variants:
        if _has_recipe(result, recipe, evaluation, recipes or {}):
            return measurement(evaluation, result, identity, bundled)
    return None


def _has_recipe(result: VariantResult, recipe: Recipe, evaluation: Evaluation, recipes: Mapping[str, str]) -> bool:
    variant = result.variant
    if not recipe.steps:
        same_model = variant.kind == "model" and variant.model_path == evaluation.variants[0].variant.model_path
        return same_model and variant.serving == recipe.serving
    return recipes.get(artifact_of(variant) or variant.source, variant.recipe_hash) == recipe.hash


def measurement(evaluation: Evaluation, result: VariantResult, identity: str, bundled: bool = False) -> Measurement:
    """Return the measurement of one variant of an evaluation."""
    # A price of one hour is after the discount.
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
        tokens=load_words.mean_tokens(result.levels),
        came_round=bundled and any(level.prefix_cache_hit_rate is None for level in result.levels),
    )


def _level(level: Level) -> MeasuredLevel:
    return MeasuredLevel(
        concurrency=level.concurrency,
        load=level.load,
        repeats=level.repeats,
        output_tokens_per_s=level.output_tokens_per_s,
        output_tokens_per_s_per_request=level.output_tokens_per_s_per_request,
        ttft_ms_p50=level.ttft_ms.p50 if level.ttft_ms else None,
        tpot_ms_p50=level.tpot_ms.p50 if level.tpot_ms else None,
        price_per_million_output=level.price.per_million_output if level.price else None,
        sound=is_sound(level),
    )


def unique(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return each evaluation once, the latest first.

    A demonstration stores the bundled evaluations too; its own copy is preferred, since its page can be opened.
    """
    by_evaluation: dict[str, Measurement] = {}
    for measurement in measurements:
        known = by_evaluation.get(measurement.evaluation)
        if known is None or known.bundled:
            by_evaluation[measurement.evaluation] = measurement
    return tuple(sorted(by_evaluation.values(), key=lambda measurement: measurement.measured_at, reverse=True))
