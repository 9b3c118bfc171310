"""The top of an evaluation, the same on its page and in its report: verdict, tiles, first charts, caveats. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.soundness import SHARED_PROCESSORS, validity_warnings
from backend.domain.limits.chart_selection import select_variants
from backend.present.charts import tradeoffs
from backend.present.charts.theme import Figure, Theme
from backend.present.variant_tiles import mixed_sentences, variant_tiles
from backend.present.words import evidence, headline, load_search
from backend.present.words.headline import Tile

Tone = Literal["win", "noisy", "open"]
"""The tone of a verdict: something is faster, the noise is too high to tell, or neither."""


class EvaluationTop(NamedTuple):
    """The parts that a reader sees first, in this order; the charts (`first_charts`) come after the tiles. `verdict` is
    one sentence; of a search one for each variant, and there are no tiles."""

    off: list[str]
    """Sentences on settings that were not served as configured."""
    verdict: list[str]
    tone: Tone
    tiles: list[Tile]
    without_tile: str
    """Says how many variants have no tile; empty if all have one."""
    caveats: list[str]


def read_top(evaluation: Evaluation) -> EvaluationTop:
    """Return the top of an evaluation."""
    is_search = load_search.is_search(evaluation)
    tiles = [] if is_search else variant_tiles(evaluation)
    return EvaluationTop(
        off=evidence.off_sentences(evaluation),
        verdict=load_search.sentences(evaluation) if is_search else [headline.short_sentence(evaluation)],
        tone=verdict_tone(evaluation),
        tiles=tiles,
        without_tile=_without_tile(evaluation, tiles),
        caveats=caveat_sentences(evaluation),
    )


def verdict_tone(evaluation: Evaluation) -> Tone:
    """Return how the sentence of the verdict is coloured."""
    if headline.find_win(evaluation) is not None:
        return "win"
    is_noisy = any(verdict.kind == "noisy" for verdict in headline.throughput_verdicts(evaluation))
    return "noisy" if is_noisy else "open"


def caveat_sentences(evaluation: Evaluation) -> list[str]:
    """Return what a reader of the figures must know, except the one that holds for every evaluation on one machine."""
    warnings = [warning for warning in evaluation.warnings if warning != SHARED_PROCESSORS]
    return list(dict.fromkeys([*validity_warnings(evaluation.variants), *mixed_sentences(evaluation), *warnings]))


def _without_tile(evaluation: Evaluation, tiles: Sequence[Tile]) -> str:
    if not tiles or len(tiles) >= len(evaluation.variants):
        return ""
    return f"The {len(tiles) - 1} fastest of {len(evaluation.variants) - 1} variants; the table below has all."


class FirstCharts(NamedTuple):
    """The trade-off of all variants, and beside it their quality where that was measured."""

    front: Figure
    quality: Figure | None


def first_charts(evaluation: Evaluation, shown: Sequence[str], theme: Theme = "light") -> FirstCharts:
    """Draw the charts below the tiles, the variants of these names in colour."""
    front, selected = tradeoffs.pareto(evaluation, theme, shown), select_variants(evaluation, shown)
    if not any(result.quality for result in selected.variants):
        return FirstCharts(front, None)
    return FirstCharts(front, tradeoffs.quality_speed(selected, None, theme, brief=True))
