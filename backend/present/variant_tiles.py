"""A tile for each variant of an evaluation: its speed-up at one load, the outcome as a word, and its interval."""

from __future__ import annotations

from typing import Literal, NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, VariantResult
from backend.domain.evaluation.outcome import VerdictKind
from backend.domain.figures import code, factor_and_bounds, listed
from backend.domain.load.load import Load
from backend.present.words import headline
from backend.present.words.headline import Tile
from backend.present.words.measurements import throughput
from backend.present.words.verdicts import CellKind

MOST_TILES = 4
"""Tiles in a row; a table has the other variants."""
WORDS: dict[VerdictKind, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "same",
    "noisy": "inconclusive",
    "none": "no verdict",
}
RUINED = "quality ruined"
Colour = Literal["green", "orange", "blue", "gray"]
Arrow = Literal["up", "down", "off"]
OUTCOME_LOOKS: dict[CellKind | None, tuple[Colour, Arrow]] = {
    "faster": ("green", "up"),
    "slower": ("orange", "down"),
    "same": ("blue", "off"),
}


def tile_look(tile: Tile) -> tuple[Colour, Arrow]:
    """Return colour and arrow of a tile's word; without an outcome it is grey. The word is always there too."""
    return OUTCOME_LOOKS.get(tile.kind, ("gray", "off"))


def variant_tiles(evaluation: Evaluation) -> list[Tile]:
    """Make a tile for the baseline and for at most three variants, those with the highest speed-up."""
    # 1. The load that the verdict names.
    load = tile_load(evaluation)
    if load is None:
        return []
    rows = {row.variant: row for row in evaluation.comparison if higher_is_better(row.metric) and row.load == load}
    # 2. The variants that have room.
    baseline, *others = evaluation.variants
    fastest = sorted(others, key=lambda result: _ratio(rows.get(result.name)), reverse=True)[: MOST_TILES - 1]
    # 3. Their tiles.
    tiles = [_tile(evaluation, result, rows.get(result.name)) for result in others if result in fastest]
    return [_baseline_tile(baseline, load), *tiles]


def tile_load(evaluation: Evaluation) -> Load | None:
    """Return the load of the tiles: that of the win, else the highest that was compared or measured."""
    win = headline.find_win(evaluation)
    if win is not None:
        return win.row.load
    compared = [verdict.load for verdict in headline.throughput_verdicts(evaluation)]
    measured = [level.load for result in evaluation.variants[:1] for level in result.levels]
    return max(compared or measured, default=None)


class LeadingVariant(NamedTuple):
    """The variant that an evaluation is about in a list: the win, else the one with the highest factor. `level` is None
    where it was not measured at the load of `row`."""

    result: VariantResult
    row: Comparison
    level: Level | None
    word: str


def find_leading(evaluation: Evaluation) -> LeadingVariant | None:
    """Return the leading variant at the load of the tiles; None where nothing was compared there."""
    # 1. The win, else the highest factor at that load.
    load, win = tile_load(evaluation), headline.find_win(evaluation)
    rows = [row for row in evaluation.comparison if higher_is_better(row.metric) and row.load == load]
    row = win.row if win is not None else max(rows, key=_ratio, default=None)
    if row is None:
        return None
    # 2. Its result there.
    result = next((result for result in evaluation.variants if result.name == row.variant), None)
    if result is None:
        return None
    level = next((level for level in result.levels if level.load == load), None)
    return LeadingVariant(result, row, level, WORDS[headline.throughput_verdict(row).kind])


def mixed_sentences(evaluation: Evaluation) -> list[str]:
    """Say of each variant that is faster at one load and slower at another, how it does at each."""
    sentences = []
    for result in evaluation.variants[1:]:
        verdicts = [each for each in headline.throughput_verdicts(evaluation) if each.variant == result.name]
        if {"faster", "slower"} <= {verdict.kind for verdict in verdicts}:
            sentences.append(f"{code(result.name)} is not faster at every load: {_at_each_load(evaluation, result)}.")
    return sentences


def _ratio(row: Comparison | None) -> float:
    return (row.ratio or 0.0) if row is not None else 0.0


def _baseline_tile(result: VariantResult, load: Load) -> Tile:
    """Return the tile with the baseline's own throughput, of which the others are multiples."""
    level = next((level for level in result.levels if level.load == load), None)
    value = throughput(level) if level is not None else "not measured"
    return Tile(result.name, value, f"at {load.words}", "baseline", "baseline", result.variant.source)


def _tile(evaluation: Evaluation, result: VariantResult, row: Comparison | None) -> Tile:
    """Return the tile of a variant. A speed-up whose answers are ruined is marked as such."""
    # 1. Without a comparison at this load there is no figure.
    if row is None:
        return Tile(result.name, "–", "", WORDS["none"], "none", _at_each_load(evaluation, result))
    # 2. The factor and its interval; without a test its reason.
    verdict = headline.throughput_verdict(row)
    factor, bounds = factor_and_bounds(row.ratio or 1.0, row.ci95)
    word, kind = WORDS[verdict.kind], verdict.kind
    if verdict.kind == "none":
        word, bounds = verdict.words, ""
        factor = "–" if row.ratio is None or row.outcome == "not_comparable" else factor
    # 3. Quality that is gone is said in place of the word.
    if headline.is_ruined(result.quality):
        word, kind = f"{word}, {RUINED}", "slower"
    return Tile(result.name, factor, bounds, word, kind, _at_each_load(evaluation, result))


def _at_each_load(evaluation: Evaluation, result: VariantResult) -> str:
    """Say the verdict at every load: `1.5x faster (1.3 to 1.7) at 1 stream and 1.8x slower (1.6 to 2.0) at 4 streams`;
    empty where nothing was compared."""
    texts = [
        f"{verdict.text} at {verdict.load.words}"
        for verdict in headline.throughput_verdicts(evaluation)
        if verdict.variant == result.name
    ]
    return listed(texts) if texts else ""
