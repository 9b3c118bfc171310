"""An evaluation in short: a verdict for each variant and load, one sentence for the whole, and four tiles.

For the top of a page and the end of a demo; the full verdicts are in `verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.outcome import VerdictKind
from backend.domain.evaluation.prices import price_per_million
from backend.domain.figures import code, counted, factor_and_bounds, figure, listed, small
from backend.domain.limits.quality_loss import LossGrade, loss_grade, loss_nats
from backend.domain.load.load import Load
from backend.domain.what_if.costs import WhatIf, choose_pricing
from backend.present.words import quality_loss
from backend.present.words.verdicts import (
    IN_SHORT,
    TOO_NOISY,
    CellKind,
    describe_obstacle,
    factor_above_one,
    sameness_words,
)

MOST_BLOCKS = 60
"""More blocks than this are not proposed: the machine is too busy for them to help."""
MOST_NAMED = 2
"""More variants than this are not named in a short sentence."""
TRY = "Try another technique, more streams, or a larger model: on a small one most of a step is overhead."


class ThroughputVerdict(NamedTuple):
    """The verdict on one variant's throughput at one load; `more` is how many blocks may decide it, None where more
    blocks would not help."""

    variant: str
    load: Load
    kind: VerdictKind
    words: str
    bounds: str = ""
    more: int | None = None

    @property
    def text(self) -> str:
        """`1.9x faster (1.8 to 2.0)`."""
        return f"{self.words} ({self.bounds})" if self.bounds else self.words


def throughput_verdicts(evaluation: Evaluation) -> list[ThroughputVerdict]:
    """Return one verdict for each variant and load that was compared, in the order of the comparison."""
    return [throughput_verdict(row) for row in evaluation.comparison if higher_is_better(row.metric)]


def throughput_verdict(row: Comparison) -> ThroughputVerdict:
    """Put the comparison of a throughput into words."""
    # 1. No test: the reason, and the blocks that are missing where only they are.
    if row.why is not None:
        missing = (row.why.of or 0) - (row.why.count or 0)
        more = max(2, missing) if row.why.cause == "few_repeats" else None
        return ThroughputVerdict(row.variant, row.load, row.kind, IN_SHORT.get(row.why.cause, "no verdict"), more=more)
    # 2. A difference: its factor.
    if row.significant:
        factor, bounds = short_factor(*factor_above_one(row))
        return ThroughputVerdict(row.variant, row.load, row.kind, f"{factor} {row.kind}", bounds)
    # 3. The same, or too noisy: then more blocks may decide it.
    bounds = factor_and_bounds(row.ratio or 1.0, row.ci95)[1]
    worthwhile = row.more_blocks if row.kind == "noisy" and (row.more_blocks or 0) <= MOST_BLOCKS else None
    return ThroughputVerdict(row.variant, row.load, row.kind, sameness_words(row), bounds, worthwhile)


def short_factor(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    """Return `1.9x` and `1.8 to 2.0`, with more digits where a figure would round to 1."""
    if interval is None or not all(1.05 < end < 1000 for end in (ratio, *interval)):
        return factor_and_bounds(ratio, interval)
    return f"{ratio:.1f}x", f"{interval[0]:.1f} to {interval[1]:.1f}"


class Win(NamedTuple):
    """A variant that a test names faster than the baseline at a load, with both results and their levels there."""

    row: Comparison
    before: VariantResult
    after: VariantResult
    levels: tuple[Level, Level]


def find_win(evaluation: Evaluation) -> Win | None:
    """Return the win with the highest lower end of its interval, over all variants and loads.

    Another one replaces it that was measured faster still and has a better grade of quality loss. A variant whose
    quality is ruined never wins.
    """
    wins = _wins(evaluation)
    if not wins:
        return None
    surest = wins[0]
    for win in wins:
        is_faster = (win.row.ratio or 0) > (surest.row.ratio or 0)
        if is_faster and _grade_rank(win.after.quality) < _grade_rank(surest.after.quality):
            return win
    return surest


def _wins(evaluation: Evaluation) -> list[Win]:
    """Return every throughput that a test names better, the surest first."""
    faster = [
        row for row in evaluation.comparison if higher_is_better(row.metric) and row.outcome == "better" and row.ci95
    ]
    results, wins = {result.name: result for result in evaluation.variants}, []
    for row in sorted(faster, key=lambda row: row.ci95[0] if row.ci95 else 0.0, reverse=True):
        before, after = results.get(row.baseline), results.get(row.variant)
        if before is None or after is None or is_ruined(after.quality):
            continue
        level_before, level_after = (_find_level(result, row.load) for result in (before, after))
        if level_before is not None and level_after is not None:
            wins.append(Win(row, before, after, (level_before, level_after)))
    return wins


def _find_level(result: VariantResult, load: Load) -> Level | None:
    return next((level for level in result.levels if level.load == load), None)


def _loss(quality: Quality | None) -> float | None:
    return loss_nats(quality.known_kl, quality.perplexity_original, quality.perplexity) if quality else None


def _grade_rank(quality: Quality | None) -> int:
    """0 where nothing is lost; a loss that nobody measured ranks behind every grade."""
    loss = _loss(quality)
    return len(get_args(LossGrade)) if loss is None else get_args(LossGrade).index(loss_grade(loss))


def is_ruined(quality: Quality | None) -> bool:
    loss = _loss(quality)
    return loss is not None and loss_grade(loss) == "ruined"


def short_sentence(evaluation: Evaluation) -> str:
    """Write the verdict in one line, for a page whose tiles and charts show the rest.

    `w8a8 is 1.9x faster at 1 stream, 47% smaller, KL 0.03.` Where nothing wins, the reason without what to try.
    """
    win = find_win(evaluation)
    if win is None:
        return _no_win_parts(evaluation, short=True)[0]
    parts = [speed_words(win), size_change(win), short_quality(win.after.quality).partition(": ")[0]]
    return f"{', '.join(filter(None, parts))}."


def speed_words(win: Win) -> str:
    """Say `w8a8 is 1.9x faster at 1 stream`: the title beside tiles that say the rest."""
    factor, _ = short_factor(win.row.ratio or 1.0, win.row.ci95)
    return f"{code(win.after.name)} is {factor} faster at {win.row.load.words}"


def title_words(win: Win) -> str:
    """Say `w8a8 is 1.9x faster than starter at 1 stream`: the title where nothing else names the model."""
    factor, _ = short_factor(win.row.ratio or 1.0, win.row.ci95)
    return f"{code(win.after.name)} is {factor} faster than {code(win.before.name)} at {win.row.load.words}"


def headline_sentence(evaluation: Evaluation) -> str:
    """Write the one sentence about an evaluation, from measured fields.

    `w8a8 is 1.9x faster at 1 stream (1.8 to 2.0), 47% smaller, KL 0.03: same top token at 93% of positions; costs 0.52x
    as much per token.` Where nothing wins, the reason and what to try.
    """
    # Without a win the sentence says why.
    win = find_win(evaluation)
    if win is None:
        return no_win_sentence(evaluation)
    # Speed, size and quality, in this order.
    factor, bounds = short_factor(win.row.ratio or 1.0, win.row.ci95)
    parts = [f"{code(win.after.name)} is {factor} faster at {win.row.load.words} ({bounds})"]
    size = size_change(win)
    if size:
        parts.append(size)
    parts.append(short_quality(win.after.quality))
    # The cost last, if the prices are known.
    share = cost_share(evaluation, win)
    cost = "" if share is None else f"; costs {share:.2f}x as much per token"
    return f"{', '.join(parts)}{cost}."


def others_sentence(evaluation: Evaluation, win: Win) -> str:
    """Say how fast the variants beside the winner are; nothing where there is none.

    `Also measured: Q4_1 on llama.cpp, 1.5x faster (1.3 to 1.7) at 1 stream and 1.8x slower (1.6 to 2.0) at 4 streams.`
    """
    verdicts: dict[str, list[str]] = {}
    for verdict in throughput_verdicts(evaluation):
        if verdict.variant != win.after.name:
            verdicts.setdefault(verdict.variant, []).append(f"{verdict.text} at {verdict.load.words}")
    measured = "; ".join(f"{code(name)}, {listed(texts)}" for name, texts in verdicts.items())
    return f"Also measured: {measured}." if measured else ""


def size_change(win: Win) -> str:
    """Say `47% smaller` on disk; nothing where the size is the same or not known."""
    before, after = win.before.variant.bytes_on_disk, win.after.variant.bytes_on_disk
    if not before or not after or abs(after / before - 1) < 0.005:
        return ""
    return f"{abs(after / before - 1):.0%} {'smaller' if after < before else 'larger'}"


def short_quality(quality: Quality | None) -> str:
    """Say `KL 0.03: same top token at 93% of positions`; without that share, how large the loss is."""
    if quality is None or quality.known_kl is None:
        return "quality not measured"
    if quality.known_same_top is None:
        detail = quality_loss.words(quality)
    else:
        detail = quality_loss.same_top(quality.known_same_top)
    basis = " as served" if quality.known_as_served else ""
    return f"KL {small(quality.known_kl)}{basis}{f': {detail}' if detail else ''}"


def cost_share(evaluation: Evaluation, win: Win) -> float | None:
    """Return the price per token of the variant, divided by that of the baseline.

    The speed-up divides it; the prices of an hour multiply it where instances of an endpoint have their own. None where
    only one of the two hours has a price.
    """
    before, after = (evaluation.options.hourly_price(result.variant) for result in (win.before, win.after))
    speed_up = win.row.ratio or 1.0
    if before is None and after is None:
        has_own_instances = win.before.variant.remote or win.after.variant.remote  # their hours may cost differently
        return None if has_own_instances else 1 / speed_up
    return after / before / speed_up if before and after is not None else None


def no_win_sentence(evaluation: Evaluation) -> str:
    """Say in one line why no variant is called faster, and what to try."""
    return " ".join(filter(None, _no_win_parts(evaluation)))


def _no_win_parts(evaluation: Evaluation, *, short: bool = False) -> tuple[str, str]:
    """Return why no variant is called faster, and what to try. `short`: three or more variants are not named."""
    verdicts = throughput_verdicts(evaluation)
    if not verdicts:
        return "One variant was measured, so there is nothing to compare: measure it with another one.", ""
    baseline = code(evaluation.variants[0].name)
    noisy = [verdict for verdict in verdicts if verdict.kind == "noisy"]
    if noisy:
        open_verdicts = [verdict for verdict in verdicts if verdict.kind == "noisy" or verdict.more is not None]
        names = {verdict.variant for verdict in noisy}
        summary = _noisy_summary(noisy)
        if short and len(names) > MOST_NAMED:
            summary = f"{len(names)} of {len(evaluation.variants) - 1} variants are {TOO_NOISY}"
        return f"No clear winner over {baseline} yet: {summary}.", more_blocks_advice(open_verdicts)
    decided = [verdict for verdict in verdicts if verdict.kind != "none"]
    if decided and short and len({verdict.variant for verdict in decided}) > MOST_NAMED:
        return f"Nothing is faster than {baseline} here.", TRY
    if decided:
        return f"Nothing is faster than {baseline} here: {_summary(decided)}.", TRY
    why = next((row.why for row in evaluation.comparison if row.why is not None), None)
    return f"There is no verdict against {baseline}{f': {describe_obstacle(why)}' if why else ''}.", ""


def evidence_sentence(evaluation: Evaluation) -> str:
    """Say what was tried, and what the widest interval of a throughput rests on; empty where nothing was tested.

    `Tried: `a` and `b` at 1 stream and 4 streams. The widest interval, of `b` at 4 streams (0.8 to 2.2), rests on 72
    requests in 6 blocks.`
    """
    # 1. The throughputs that were tested.
    rows = [row for row in evaluation.comparison if higher_is_better(row.metric) and row.why is None and row.ci95]
    if not rows:
        return ""
    names = listed([code(name) for name in dict.fromkeys(row.variant for row in rows)])
    loads = listed([load.words for load in dict.fromkeys(row.load for row in rows)])
    # 2. The one that is known least, as a factor, and what was measured of it.
    widest = max(rows, key=lambda row: row.ci95[1] / row.ci95[0] if row.ci95 and row.ci95[0] > 0 else math.inf)
    result = next(result for result in evaluation.variants if result.name == widest.variant)
    level = _find_level(result, widest.load)
    measured = f"{counted(level.requests, 'request')} in {counted(level.repeats, 'block')}" if level else "no request"
    bounds = factor_and_bounds(widest.ratio or 1.0, widest.ci95)[1]
    return (
        f"Tried: {names} at {loads}. The widest interval, of {code(widest.variant)} at {widest.load.words} ({bounds}), "
        f"rests on {measured}."
    )


def _summary(verdicts: Sequence[ThroughputVerdict]) -> str:
    """Say the verdict on each variant at its highest load, equal ones together: ``a` and `b` are too noisy to tell at
    4 streams`."""
    at_highest_load = {verdict.variant: verdict for verdict in sorted(verdicts, key=lambda verdict: verdict.load)}
    names_by_words: dict[tuple[str, Load], list[str]] = {}
    for name, verdict in at_highest_load.items():
        names_by_words.setdefault((verdict.words, verdict.load), []).append(code(name))
    parts = []
    for (words, load), names in names_by_words.items():
        parts.append(f"{listed(names)} {'is' if len(names) == 1 else 'are'} {words} at {load.words}")
    return ", ".join(parts)


def _noisy_summary(noisy: Sequence[ThroughputVerdict]) -> str:
    """Say at which loads each variant is too noisy to tell: at all of them, since advice about blocks follows."""
    loads: dict[str, list[Load]] = {}
    for verdict in noisy:
        loads.setdefault(verdict.variant, []).append(verdict.load)
    names_by_loads: dict[tuple[Load, ...], list[str]] = {}
    for name, own in loads.items():
        names_by_loads.setdefault(tuple(sorted(own)), []).append(code(name))
    parts = []
    for together, names in names_by_loads.items():
        verb = "is" if len(names) == 1 else "are"
        parts.append(f"{listed(names)} {verb} {TOO_NOISY} at {listed([load.words for load in together])}")
    return ", ".join(parts)


def more_blocks_advice(open_verdicts: Sequence[ThroughputVerdict]) -> str:
    """Say how many more blocks would decide and what, or that it takes a quieter machine."""
    more = more_blocks(open_verdicts)
    if more is None:
        return "More blocks would take too long: measure again on an idle machine."
    run = f"Run {counted(more, 'more block')} on an idle machine"
    if all(verdict.more is not None for verdict in open_verdicts):
        return f"{run}."
    return f"{run} to decide {decided_places(open_verdicts)}; the rest would take too long."


def decided_places(verdicts: Sequence[ThroughputVerdict]) -> str:
    """Name what the blocks of `more_blocks` decide: ``a` and `b` at 4 streams, `b` at 8 streams`."""
    names_by_load: dict[Load, list[str]] = {}
    for verdict in verdicts:
        if verdict.more is not None:
            names_by_load.setdefault(verdict.load, []).append(code(verdict.variant))
    return ", ".join(f"{listed(names_by_load[load])} at {load.words}" for load in sorted(names_by_load))


def more_blocks(verdicts: Sequence[ThroughputVerdict]) -> int | None:
    """Return how many blocks decide every verdict that can be decided; None where none can, or none needs it."""
    needed = [verdict.more for verdict in verdicts if verdict.more is not None]
    return max(needed, default=None)


class Tile(NamedTuple):
    """One figure: its label, its value, and what it rests on. `kind` gives `word` its colour; `about` is the whole of
    it, for whoever asks."""

    label: str
    value: str
    detail: str = ""
    word: str = ""
    kind: CellKind | None = None
    about: str = ""


def tiles(evaluation: Evaluation, win: Win, size: Sequence[str]) -> list[Tile]:
    """Make the tiles of speed, size, price and quality. `size`: both weights on disk in words."""
    factor, bounds = short_factor(win.row.ratio or 1.0, win.row.ci95)
    before, after = (level.output_tokens_per_s for level in win.levels)
    quality = short_quality(win.after.quality).partition(": ")[0]
    loss = quality_loss.words(win.after.quality) or "against the original, over the whole vocabulary"
    return [
        Tile(
            f"Speed, {win.row.load.words}",
            f"{factor} faster",
            f"{figure(before)} to {figure(after)} tokens/s; 95% {bounds}",
        ),
        Tile("Size", size_change(win) or "the same", f"{size[0]} to {size[1]}"),
        Tile("Price per token", _price_change(cost_share(evaluation, win)), _prices(evaluation, win, (before, after))),
        Tile("Quality", quality, loss.partition("; ")[0], about=loss if "; " in loss else ""),
    ]


def _price_change(share: float | None) -> str:
    if share is None:
        return "not known"
    return f"{abs(1 - share):.0%} {'cheaper' if share <= 1 else 'more expensive'}"


def _prices(evaluation: Evaluation, win: Win, tokens_per_s: tuple[float | None, float | None]) -> str:
    """Say both prices per million output tokens, and the prices per hour that they come from."""
    first, second = (choose_pricing(evaluation, WhatIf(), result.variant) for result in (win.before, win.after))
    if first is None or second is None:
        return "at the same hourly price" if first is second else "only one of them has an hourly price"
    before = figure(price_per_million(first.hour, tokens_per_s[0]))
    after = figure(price_per_million(second.hour, tokens_per_s[1]))
    hours = " and ".join(dict.fromkeys(f"{pricing.per_hour:g}" for pricing in (first, second)))
    return f"{before} to {after} USD per million tokens, at {hours} USD per hour"
